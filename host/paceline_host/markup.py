# SPDX-License-Identifier: Apache-2.0
"""Text -> HTML that is inert by construction: whatever is not `Markup` is escaped. Knows no page and no figure."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

VOID = {"meta", "link", "br"}
# Characters that end a document, hide text or turn its direction round; a reason off the wire may hold any of them.
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
Child = object  # Markup stands as it is; None is nothing; an iterable is its members; all else is escaped text


class Markup(str):
    """Finished HTML."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Return a value as escaped text; what cannot be shown becomes the replacement character."""
    return Markup(html.escape(_UNSHOWN.sub("\ufffd", str(value)), quote=True))


def join(*children: Child) -> Markup:
    """Return the children one after another."""
    return Markup("".join(_pieces(children)))


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """Return an element. `class_` is class, `stroke_width` is stroke-width; None leaves an attribute out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-") if key != "viewBox" else key}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{join(*children)}</{name}>")


def table(
    caption: Child, columns: Sequence[Child], rows: Iterable[Sequence[Child]], *, numbers_from: int = 1
) -> Markup:
    """Return a table whose first column names its rows and which scrolls by itself where it is too wide.

    Columns from `numbers_from` on hold numbers.
    """

    def kind(index: int) -> str | None:
        return "n" if index >= numbers_from else None

    head = tag("tr", [tag("th", name, scope="col", class_=kind(i)) for i, name in enumerate(columns)])
    body = [
        tag("tr", tag("th", row[0], scope="row"), [tag("td", c, class_=kind(i)) for i, c in enumerate(row[1:], 1)])
        for row in rows
    ]
    whole = tag("table", tag("caption", tag("span", caption)), tag("thead", head), tag("tbody", body))
    return tag("div", whole, class_="wide", role="region", tabindex=0, aria_label=caption)


def _pieces(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, Iterable) and not isinstance(child, str):
            yield from _pieces(child)
        elif child is not None:
            yield text(child)

# SPDX-License-Identifier: Apache-2.0
"""Numbers -> inline SVG. Knows no run: names, points and colours by index; the page's style sheet gives the colours.

One unit of a drawing is one pixel on a phone; text never gets smaller than that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline_host.markup import Markup, join, tag

WIDTH = 340.0
COLOURS = 8  # --c0 to --c7 of the style sheet; markers say the same again
MANY_POINTS = 60  # above it a line has no markers, and bars have no gaps
NAME_CHARACTERS = 17
Points = Sequence[tuple[float, float | None]]
_MARKERS: tuple[Callable[[float, float], str], ...] = (
    lambda x, y: f"M{x - 3:.1f} {y:.1f}a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    lambda x, y: f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6z",
    lambda x, y: f"M{x:.1f} {y - 4:.1f}l3.8 7h-7.6z",
    lambda x, y: f"M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4-4z",
    lambda x, y: f"M{x:.1f} {y + 4:.1f}l3.8-7h-7.6z",
    lambda x, y: f"M{x - 1.3:.1f} {y - 4:.1f}h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    lambda x, y: f"M{x - 4:.1f} {y - 2:.1f}h8v4h-8z",
    lambda x, y: f"M{x - 2:.1f} {y - 4:.1f}h4v8h-4z",
)


@dataclass(frozen=True)
class Line:
    """One line of a chart. A point whose y is None is a gap."""

    name: str
    points: Points
    colour: int
    predicted: Points = ()  # a ring at each point; dots where there are many


@dataclass(frozen=True)
class Stack:
    """One bar of stacked parts; parts None: unknown."""

    name: str
    parts: Sequence[tuple[str, float]] | None
    text: str  # what stands beside the name


def lines(
    title: str, about: str, series: Sequence[Line], *, x_label: str, y_label: str, y_from_zero: bool = True,
    whole_x: bool = False,
) -> Markup:  # fmt: skip
    """Return a line chart; `about` says in words what it shows."""
    series = [Line(line.name, _finite(line.points), line.colour, _finite(line.predicted)) for line in series]
    points = [p for line in series for p in (*line.points, *line.predicted)]
    known = [y for _, y in points if y is not None]
    if not known:
        return tag("p", "Nothing to draw.", class_="none")
    xs = [x for x, _ in points]
    x_ticks = ticks(min(xs) if whole_x else 0.0, max(xs), 5, whole=whole_x)
    y_ticks = ticks(0.0 if y_from_zero else min(known), max(known), 5)
    x_low, x_high = (min(xs) - 0.3, max(xs) + 0.3) if whole_x else (x_ticks[0], max(*xs, x_ticks[-1]))
    y_low, y_high = y_ticks[0], y_ticks[-1]
    left, right, top, bottom = 42.0, WIDTH - 16, 22.0, 184.0

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (right - left) * (x - x_low) / ((x_high - x_low) or 1.0),
            bottom - (bottom - top) * (y - y_low) / ((y_high - y_low) or 1.0),
        )

    grid = []
    for y in y_ticks:
        height = at(x_low, y)[1]
        grid.append(tag("path", d=f"M{left:.0f} {height:.1f}H{right:.0f}", class_="grid"))
        grid.append(tag("text", number(y, y_ticks), x=left - 5, y=f"{height + 4:.1f}", text_anchor="end"))
    for x in x_ticks:
        grid.append(tag("text", number(x, x_ticks), x=f"{at(x, y_low)[0]:.1f}", y=bottom + 15, text_anchor="middle"))
    grid.append(tag("text", y_label, x=2, y=11))
    grid.append(tag("text", x_label, x=right, y=bottom + 31, text_anchor="end"))
    drawn = [_line(line, at, x_label) for line in series]
    return _svg(title, about, bottom + 36, grid, drawn)


def _finite(points: Points) -> Points:
    """Let a loss that has run away be a gap."""
    return [(x, y if y is not None and math.isfinite(y) else None) for x, y in points]


def _line(line: Line, at: Callable[[float, float], tuple[float, float]], x_label: str) -> Markup:
    style = f"--c:var(--c{line.colour % COLOURS})"
    marks: list[Markup] = []
    if len(line.points) <= MANY_POINTS:
        marker = _MARKERS[line.colour % len(_MARKERS)]
        marks = [
            tag("path", tag("title", f"{line.name}: {x:.5g} {x_label.split(' (')[0]}, {y:.5g}"), d=marker(*at(x, y)),
                class_="mark")
            for x, y in line.points
            if y is not None
        ]  # fmt: skip
        around = [at(x, y) for x, y in line.predicted if y is not None]
        marks += [tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=6, class_="ring") for x, y in around]
    elif line.predicted:
        marks = [tag("path", d=_path(line.predicted, at), class_="dots")]
    return tag(
        "g",
        tag("path", d=_path(line.points, at), class_="line"),
        marks,
        style=style,
    )


def _path(points: Points, at: Callable[[float, float], tuple[float, float]]) -> str:
    pieces, pen_up = [], True
    for x, y in points:
        if y is not None:
            pieces.append(("M" if pen_up else "L") + "{:.1f} {:.1f}".format(*at(x, y)))
        pen_up = y is None
    return "".join(pieces)


def bars_by_row(title: str, about: str, rows: Sequence[tuple[str, Sequence[int]]], *, top_of_scale: int) -> Markup:
    """Return one row a name with one bar a round; at its end the first and the last number."""
    if not rows or not rows[0][1]:
        return tag("p", "No round is closed yet.", class_="none")
    left, right, height, count = 114.0, WIDTH - 92, 20.0, len(rows[0][1])
    step = (right - left) / count
    bar = step if count > MANY_POINTS else max(step * 0.8, min(step, 1.0))
    bar = min(bar, 22.0)
    drawn: list[Markup] = []
    for index, (name, values) in enumerate(rows):
        floor = 16.0 + (index + 1) * height
        full = (height - 4) / (top_of_scale or 1)
        d = "".join(
            f"M{left + i * step:.2f} {floor:.1f}v-{full * value:.2f}h{bar:.2f}V{floor:.1f}z"
            for i, value in enumerate(values)
        )
        drawn += [
            tag("path", d=f"M{left:.0f} {floor:.1f}H{right:.0f}", class_="grid"),
            tag("path", tag("title", f"{name}: {_listed(values)}"), d=d, class_="bar"),
            tag("text", tag("title", name), shortened(name), x=left - 6, y=floor - 4, text_anchor="end"),
            tag("text", f"{values[0]:,} → {values[-1]:,}", x=WIDTH - 2, y=floor - 4, text_anchor="end"),
        ]
    drawn += [
        tag("text", f"round 1 to {count}", x=left, y=11),
        tag("text", "first → last", x=WIDTH - 2, y=11, text_anchor="end"),
    ]
    return _svg(title, about, 22.0 + len(rows) * height, drawn)


def stacks(title: str, about: str, bars: Sequence[Stack]) -> Markup:
    """Return one horizontal bar of stacked parts for each name; class p-PART gives the colour."""
    longest = max((sum(size for _, size in bar.parts) for bar in bars if bar.parts is not None), default=0.0) or 1.0
    drawn: list[Markup] = []
    for index, bar in enumerate(bars):
        top, x = 40.0 * index, 0.0
        drawn.append(tag("text", tag("title", bar.name), shortened(bar.name, 30), x=0, y=top + 13, class_="strong"))
        drawn.append(tag("text", bar.text, x=WIDTH - 2, y=top + 13, text_anchor="end"))
        if bar.parts is None:
            drawn.append(tag("path", d=f"M0 {top + 25:.1f}H{WIDTH:.0f}", class_="dots unknown"))
        for part, size in bar.parts or ():
            width = (WIDTH - 2) * size / longest
            label = tag("title", f"{bar.name}, {part}: {size:,.1f} J")
            drawn.append(
                tag("rect", label, x=f"{x:.2f}", y=top + 19, width=f"{width:.2f}", height=14, class_=f"p-{part}")
            )
            x += width
    return _svg(title, about, 40.0 * len(bars), drawn)


def swatch(colour: int) -> Markup:
    """Return the small picture that stands for a line in a legend."""
    mark = tag("path", d=_MARKERS[colour % len(_MARKERS)](11.0, 6.0), class_="mark")
    line = tag("path", d="M0 6H22", class_="line")
    return tag("svg", line, mark, viewBox="0 0 22 12", class_="swatch", aria_hidden="true",
               style=f"--c:var(--c{colour % COLOURS})")  # fmt: skip


def ticks(low: float, high: float, about: int, *, whole: bool = False) -> list[float]:
    """Return round numbers around (whole: within) low..high, `about` many."""
    least = max(1e-6 * max(abs(low), abs(high)), 1e-9)  # closer together, and they are the same for a reader
    span = max(high - low, least)
    raw = span / max(about - 1, 1)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * magnitude >= raw * 0.999)
    if whole:
        step = max(1.0, math.ceil(step))
        return list(itertools.takewhile(lambda x: x <= high, itertools.count(math.ceil(low), int(step))))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, max(last, first + 1) + 1)]


def number(value: float, among: Sequence[float]) -> str:
    """Return a tick with as many decimals as its neighbours need."""
    step = among[1] - among[0] if len(among) > 1 else abs(value) or 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if decimals and not math.isclose(step, round(step, decimals), rel_tol=1e-6):
        decimals += 1
    elif not decimals and not math.isclose(step, round(step)):
        decimals = 1
    return f"{value:,.{decimals}f}"


def shortened(name: str, length: int = NAME_CHARACTERS) -> str:
    """Return a name that fits; the whole of it stands in the element's title."""
    return name if len(name) <= length else name[: length - 1] + "…"


def _listed(values: Sequence[int]) -> str:
    return ", ".join(f"{v:,}" for v in values[:MANY_POINTS]) + (" …" if len(values) > MANY_POINTS else "")


def _svg(title: str, about: str, height: float, *children: object) -> Markup:
    label = join(tag("title", title), tag("desc", about))
    return tag(
        "svg", label, children, viewBox=f"0 0 {WIDTH:.0f} {height:.0f}", role="img", aria_label=f"{title}. {about}"
    )

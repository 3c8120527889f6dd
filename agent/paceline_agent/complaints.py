# SPDX-License-Identifier: Apache-2.0
"""Which troubles of a meter are news, so that one which comes and goes, or has many names, fills no log. Pure."""

from __future__ import annotations

AGAIN_S = 60.0  # what was said is not said again for so long
MOST = 5  # so many words in that time


class Complaints:
    """What was said of one meter, and when."""

    def __init__(self) -> None:
        self._last = ""  # what whoever reads the log believes
        self._said: dict[str, float] = {}

    def news(self, trouble: str, now_s: float) -> str | None:
        """Return what to say of the present trouble, "": that there is none any more; None: nothing.

        However it comes and goes, in the end its last state is said.
        """
        if trouble == self._last:
            return None
        self._said = {text: at_s for text, at_s in self._said.items() if now_s - at_s < AGAIN_S}
        if trouble in self._said or len(self._said) >= MOST:
            return None
        self._last, self._said[trouble] = trouble, now_s
        return trouble

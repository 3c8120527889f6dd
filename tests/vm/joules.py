# SPDX-License-Identifier: Apache-2.0
"""The last boots' joules against the module's truth, as tables: `make test-vm` prints them. Asserts nothing.

With a folder as argument it writes them to vm_joules.md there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import kernel
from .metered import LOADS, METERED, WINDOW_S

FILES = {"x86_64": "answer.json", "riscv64": "answer-riscv64.json"}
HEADS = ("source", "load", "measured, J", "true, J", "error, %", "bound, %", "unseen, %", "covered, %")
ABOUT = f"""\
Windows of {WINDOW_S:g} s of the real agent in the guest, all sources at the same time. **true**: what the module says
that the chips' conversions have seen (DECISIONS 33), or the counters were given. **bound**: the instrument's worst case
as the agent stated it. **unseen**: how far any right integration of these readings may be off, because the load changed
between them: what is left for the sampling uncertainty. **covered**: less than 100 where the guest stood still for
longer than three periods. Bursts last 13 and 19 ms, faster than most readings; steps 0.7 to 1.1 s.
"""


def keep(machine: str, answer: object) -> None:
    """Keep what a boot has answered."""
    (kernel.CACHE / FILES[machine]).write_text(json.dumps(answer, indent=1), encoding="utf-8")


def table(metered: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of one boot, in Markdown."""
    lines = [f"| {' | '.join(HEADS)} |", "|---|---|" + "---:|" * (len(HEADS) - 2)]
    for name in METERED:
        for load in LOADS:
            window = metered.get(name, {}).get(load)
            if window is None:
                continue
            true_j = window["converted_uj"] / 1e6
            energy_j = window["energy_uj"]
            known = [f"{energy_j / 1e6:.3f}", f"{true_j:.3f}", f"{100 * (energy_j / 1e6 / true_j - 1):+.3f}"]
            shares = [f"{100 * window[of] / 1e6 / true_j:.2f}" for of in ("bound_uj", "unseen_uj")]
            covered = f"{100 * window['covered_us'] / window['span_us']:.0f}"
            lines.append(f"| {' | '.join([name, load, *known, *shares, covered])} |")
    return "\n".join(lines)


def tables() -> dict[str, str]:
    """Return machine and kernel -> table, of each boot that was kept."""
    found = {}
    for machine, name in FILES.items():
        path = kernel.CACHE / name
        if path.exists():
            answer = json.loads(path.read_text(encoding="utf-8"))
            if "found" in answer["metered"]:
                version = answer["kernel"]["found"]["version"].split()[2]
                found[f"{machine}, Linux {version}"] = table(answer["metered"]["found"])
    return found


def main(folder: str = "") -> int:
    """Print the tables, or write the page."""
    text = "\n\n".join(f"## {title}\n\n{each}" for title, each in tables().items())
    if not folder:
        print(text)
        return 0
    head = "# Joules against a known truth, on a real kernel\n\n"
    made = "Made by `make test-vm`, `make test-vm ARCH=riscv64` and `python -m tests.vm.joules docs/results`.\n\n"
    Path(folder, "vm_joules.md").write_text(f"{head}{made}{ABOUT}\n{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

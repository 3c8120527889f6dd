# SPDX-License-Identifier: Apache-2.0
"""The commands of `paceline`, one module for each family. stdout is data, stderr is talk; a heavy module is imported by
the command that needs it, when it runs.
"""

from __future__ import annotations

from paceline.commandline import Program, add_completion
from paceline.version import VERSION
from paceline_host.commands import (
    bench,
    board_keys,
    board_search,
    boards,
    config,
    data,
    doctor,
    experiments,
    host,
    keys,
    look,
    operate,
    report,
    run,
    simulate,
    top,
    verify,
)


def program() -> Program:
    """Return the program with all its commands, in the order of its help."""
    made = Program(
        "paceline",
        VERSION,
        "Train one model over unequal boards: a fixed sample budget, re-divided by measurement."
        " Every round is planned from measured seconds and joules.",
    )
    for add in (
        run.add, run.add_resume, verify.add, report.add_runs, report.add_report, look.add, host.add, operate.add,
        top.add, data.add, doctor.add, experiments.add, simulate.add, bench.add, keys.add, boards.add, board_keys.add,
        board_search.add, config.add, add_completion,
    ):  # fmt: skip
        add(made)
    return made

# SPDX-License-Identifier: Apache-2.0
"""`paceline simulate`: policies over boards that are models, in virtual time."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.commandline import Program
from paceline.talk import Talk

if TYPE_CHECKING:
    from paceline_host.simulation.fleet import Fleet
    from paceline_host.simulation.results import Outcome
    from paceline_host.simulation.scenario import Scenario

TALK_S = 5.0  # between two words of progress,
LONG_S = 0.5  # but each round that takes so long has its own
OPTIONS = ("rounds", "boards", "budget", "seed", "profile", "noise", "drift", "fault_rate")  # keys of a scenario, too
UNREPLAYED = {"profile", "drift", "round_fixed_s", "seconds_per_sample", "samples", "batch"}  # the recorded run's are
REGIMES = ("pma", "ddp", "hfl", "psl")  # whose promises --chaos tries


def add(program: Program) -> None:
    """Register the command."""
    parser = program.command(
        "simulate",
        _simulate,
        "compare policies over simulated boards, in virtual time",
        about="The production machines, controller and journal run; boards, links and watts are models, so nothing is"
        " measured and nothing is trained. The same scenario and seed give the same journal. Each policy's run is"
        " kept in a folder that `paceline report`, `explain` and `whatif` read. Faults: leave, return, throttle, load,"
        " noise, meter.",
        examples=[
            ("paceline simulate", "the demo's boards, 20 rounds, three policies"),
            ("paceline simulate --policies time,frontier:energy --rounds 100 --no-journal", "others, and nothing kept"),
            ("paceline simulate --fault 'board=1 round=5 throttle x2'", "a fault; --fault may be repeated"),
            ("paceline simulate mine.toml --json", "a file with keys such as rounds and tables [[fault]]"),
            ("paceline simulate --replay runs/demo-001/time --policies equal,time", "boards as a run measured them"),
            ("paceline simulate --boards 1000000 --controller-only --rounds 3", "no messages"),
            ("paceline simulate --chaos 7", "does a run keep its promises under faults that seed 7 draws?"),
            ("paceline simulate --chaos 7 --regime ddp", "the same of boards that step together"),
        ],
        exits=(3, 4, 9, 10),
    )
    parser.add_argument("scenario", nargs="?", type=Path, metavar="FILE", help="TOML file; options override it")
    parser.add_argument("--policies", metavar="P,P", help="as in an experiment (default: equal,time,low-energy)")
    parser.add_argument("--rounds", type=int, metavar="N", help="of each policy (default: 20)")
    parser.add_argument("--boards", type=int, metavar="N", help="more than the profile has: others like them")
    parser.add_argument("--budget", type=int, metavar="N", help="samples a round (default: 1,091 a board)")
    parser.add_argument("--seed", type=int, metavar="N", help="of noise, drift, faults at random (default: 1)")
    parser.add_argument("--profile", metavar="NAME", help="shipped, or a path (default: eleven-boards)")
    parser.add_argument("--noise", type=float, metavar="X", help="of a slice's seconds, relative; beside the profile's")
    parser.add_argument("--drift", type=float, metavar="X", help="of seconds per sample from round to round, relative")
    parser.add_argument(
        "--fault", action="append", metavar="TEXT", help="'board=3 round=5 throttle x2'; may be repeated"
    )
    parser.add_argument("--fault-rate", type=float, metavar="X", help="faults at random: chance of a board in a round")
    parser.add_argument("--replay", type=Path, metavar="RUN", help="boards cost what this run's folder says")
    parser.add_argument(
        "--chaos", metavar="SEED", help="a small run under faults of every kind, and a witness; 1-500: of many seeds"
    )
    parser.add_argument("--regime", choices=REGIMES, help="of --chaos (default: pma)")
    parser.add_argument("--controller-only", action="store_true", help="plans and reports, no protocol, no journal")
    parser.add_argument("--no-journal", action="store_true", help="keep nothing")
    parser.add_argument("--runs-dir", type=Path, metavar="FOLDER", help="where run folders are made (default: runs)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress on stderr")


def _simulate(arguments: argparse.Namespace, talk: Talk) -> int:
    if arguments.chaos is not None:
        return _chaos(arguments, talk)
    if arguments.regime is not None:
        talk.error("--regime is for --chaos; what is compared otherwise is pma", event="usage")
        return 2
    from paceline_host.simulation.fleet import Fleet
    from paceline_host.simulation.results import table

    fleet = Fleet(_scenario(arguments), arguments.replay)
    _check(fleet, arguments.controller_only)
    folder = None
    if not (arguments.no_journal or arguments.controller_only):
        from paceline_host.comparison import new_folder

        stem = arguments.scenario.stem if arguments.scenario is not None else "simulated"
        folder = new_folder(arguments.runs_dir or Path("runs"), stem)
    outcomes: list[Outcome] = []
    with _interruptible(at_once=arguments.controller_only) as interrupts:
        for name in fleet.scenario.policies:
            if not interrupts:
                said = _Said(talk, name, fleet.scenario.rounds, quiet=arguments.quiet)
                one = _alone if arguments.controller_only else _in_full
                outcomes.append(one(fleet, name, folder, lambda: bool(interrupts), said))
    _print(arguments, fleet, outcomes, folder, talk, table)
    if interrupts:
        talk.warning("interrupted; what is above is what was simulated until then", event="interrupted")
        return 128 + interrupts[0]
    return 0 if all(one.state == "finished" for one in outcomes) else 9


def _chaos(arguments: argparse.Namespace, talk: Talk) -> int:
    from paceline_host.simulation.chaos.tell import chaos, seeds

    others = ("scenario", "policies", "fault", "replay", "controller_only", "no_journal", "runs_dir", *OPTIONS)
    given = sorted(name for name in others if getattr(arguments, name) not in (None, False))
    if given:
        names = ", ".join("FILE" if name == "scenario" else f"--{name.replace('_', '-')}" for name in given)
        talk.error(f"--chaos draws all of a run from its seed; leave out {names}", event="usage")
        return 2
    with _interruptible(at_once=False) as interrupts:
        status = chaos(
            seeds(arguments.chaos), talk, lambda: bool(interrupts), regime=arguments.regime or "pma",
            as_json=arguments.json, quiet=arguments.quiet,
        )  # fmt: skip
    return 128 + interrupts[0] if interrupts else status


@contextmanager
def _interruptible(*, at_once: bool) -> Iterator[list[int]]:
    """Give a list that Ctrl-C and SIGTERM fill; `at_once`: they end the present round, too. A second one ends all."""
    interrupts: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        interrupts.append(number)
        if len(interrupts) > 1:
            sys.exit(128 + number)
        if at_once:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _scenario(arguments: argparse.Namespace) -> Scenario:
    """Return the file's scenario with the options' values in it. Raises SettingsError."""
    from paceline import settings, toml
    from paceline.errors import SettingsError
    from paceline.sheet import Sheet
    from paceline_host.simulation.faults import parse
    from paceline_host.simulation.scenario import Scenario, resolve

    values: dict[str, Any] = {}
    if (path := arguments.scenario) is not None:
        sheet = Sheet.read(path, path.name)
        resolve(sheet.table, path.parent)
        if faults := settings.read(sheet, Scenario)[1]:
            raise SettingsError(faults)
        values = sheet.table
    values |= {key: value for key in OPTIONS if (value := getattr(arguments, key)) is not None}
    if arguments.policies is not None:
        values["policies"] = [name.strip() for name in arguments.policies.split(",") if name.strip()]
    if arguments.fault:
        values["fault"] = [*values.get("fault", ()), *(toml.plain(parse(text)) for text in arguments.fault)]
    if arguments.replay is not None and (unheard := sorted(UNREPLAYED & values.keys())):
        raise SettingsError([f"--replay: boards cost what that run has measured, so leave out {', '.join(unheard)}"])
    return settings.load_table(values, Scenario, where="simulate")


def _check(fleet: Fleet, controller_only: bool) -> None:
    """Find what is wrong before any folder is made. Raises SettingsError."""
    from paceline.errors import SettingsError
    from paceline.policies import policy
    from paceline_host import planner
    from paceline_host.simulation.run import faults_of
    from paceline_host.simulation.scenario import MOST_IN_FULL

    boards, scenario = len(fleet.names), fleet.scenario
    if boards > MOST_IN_FULL and not controller_only:
        raise SettingsError(
            [f"{boards} boards are too many to speak the protocol (at most {MOST_IN_FULL}); add --controller-only"]
        )
    faults_of(fleet)
    for name in scenario.policies:
        if policy(name).kind == "mixing" and not controller_only:
            continue  # of which a controller alone knows nothing: it says so
        planner.make(policy(name), min(boards, MOST_IN_FULL), scenario.budget_of(boards), scenario.minimum)


def _in_full(fleet: Fleet, name: str, folder: Path | None, stopping: Callable[[], bool], said: _Said) -> Outcome:
    from paceline.policies import policy
    from paceline_host.comparison import folder_name
    from paceline_host.simulation.run import run_policy

    home = folder / folder_name(policy(name)) if folder is not None else None
    return run_policy(fleet, name, home, stopping, said.round_begins)


def _alone(fleet: Fleet, name: str, folder: Path | None, stopping: Callable[[], bool], said: _Said) -> Outcome:
    from paceline_host.simulation.run import run_alone

    return run_alone(fleet, name, said.round_ends)


class _Said:
    """Progress of one policy's run, now and then."""

    def __init__(self, talk: Talk, name: str, rounds: int, *, quiet: bool) -> None:
        self._talk, self._name, self._rounds, self._quiet = talk, name, rounds, quiet
        self._told_s = time.monotonic()

    def round_begins(self, number: int, more: str = "") -> None:
        """A round's work is given out."""
        if not self._quiet and time.monotonic() >= self._told_s + TALK_S:
            self._told_s = time.monotonic()
            self._talk(f"{self._name}: round {number} of {self._rounds}{more}", event="progress")

    def round_ends(self, number: int, took_s: float, cpu_s: float) -> None:
        """A round of the controller alone is over."""
        if took_s >= LONG_S:
            self._told_s -= TALK_S
        self.round_begins(number, f" took {took_s:.2f} s, {cpu_s:.2f} s of a processor")


def _print(
    arguments: argparse.Namespace, fleet: Fleet, outcomes: list[Outcome], folder: Path | None, talk: Talk,
    table: Callable[[list[Outcome], str], list[str]],
) -> None:  # fmt: skip
    s, boards = fleet.scenario, len(fleet.names)
    what = "controller only, no protocol" if arguments.controller_only else "full protocol"
    if arguments.json:
        facts: dict[str, Any] = {
            "schema": "paceline-simulation-1", "simulated": True, "mode": what, "boards": boards, "rounds": s.rounds,
            "budget": s.budget_of(boards), "seed": s.seed, "profile": None if arguments.replay else s.profile,
            "replayed": str(arguments.replay) if arguments.replay else None,
        }  # fmt: skip
        print(json.dumps({**facts, "policies": [one.as_json() for one in outcomes]}, indent=1))
    else:
        source = f"costs of {arguments.replay}" if arguments.replay else s.profile
        print("\n".join(table(
            outcomes, f"simulated, {what}: {boards:,} boards ({source}), {s.rounds} rounds x {s.budget_of(boards):,} "
            f"samples, seed {s.seed}; joules are modelled",
        )))  # fmt: skip
    if folder is not None:
        talk.info(f"runs in {folder}; more of them: paceline report {folder}")

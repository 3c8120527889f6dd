# SPDX-License-Identifier: Apache-2.0
"""A production host with boards that are protocol only, in one process beside it: its rounds, how many may join at
once, and whether its memory and descriptors stay where they are.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.errors import RunError
from paceline.keys import KeyPair, read_boards, read_pair, write_pair
from paceline.talk import Talk
from paceline_host.comparison import Comparison, Watcher
from paceline_host.embedded import terms
from paceline_host.experiment import load_experiment
from paceline_host.ledger import Ledger
from paceline_host.link import HostLink, new_pair
from paceline_host.peers import Peers
from paceline_host.server import Server
from paceline_host.swarm import Order, Told

FLOOR, NO_FSYNC, FSYNC = "floor", "fsync false", "fsync true"
TEN = 10
JOIN_S = 60.0
LOOK_S = 0.02
EXPERIMENT = """
[run]
rounds = {rounds}
budget = {budget}
policies = ["equal"]
fsync = {fsync}
[task]
name = "linear"
batch = 10
ballast = {ballast}
[fleet]
kind = "boards"
keys = "{keys}"
[energy]
required = false
"""


@dataclass(frozen=True)
class Look:
    """What the host's process holds in a round."""

    round: int
    resident_mib: float
    descriptors: int


class Swarm:
    """A host, and participants that live in a child; made by `swarm`. `join` before the first `run`."""

    def __init__(self, link: HostLink, folder: Path, child: Child, ballast: int) -> None:
        self._folder, self._child, self._ballast = folder, child, ballast
        self._boards = read_boards(folder / "keys" / "boards")
        self._runs = 0
        self._talk = Talk("paceline", "error")
        run = load_experiment(self._written(1, fsync=False)).run
        self._peers = Peers(terms(run, None))
        self._server = Server(link, self._peers, None, self._talk)

    def join(self) -> float:
        """Return the seconds from the child's start until the host has a session with every participant."""
        self._server.start()
        while len(self._server.ask(self._peers.connected)) < len(self._boards):
            self._child.check(JOIN_S)
            time.sleep(LOOK_S)
        return time.monotonic() - self._child.began_s

    def run(self, rounds: int, *, fsync: bool) -> Path:
        """Run so many rounds; return the folder of the run."""
        path = self._written(rounds, fsync=fsync)
        home = path.with_suffix("")
        home.mkdir()
        silent = Watcher(lambda text: None, lambda policy, machine, now_s: None, lambda folder, outcome: None)
        if not Comparison(load_experiment(path), silent).work(home, self._server, self._boards):
            raise RunError("the benchmark's run did not finish")
        return home / "equal"

    def watched(self, rounds: int) -> list[Look]:
        """Run so many rounds; return what the host held in them."""
        looks: list[Look] = []
        over = threading.Event()

        def watch() -> None:
            while not over.wait(LOOK_S):
                machine = self._server.machine
                if machine is not None:
                    looks.append(Look(machine.round, resident_mib(), len(os.listdir("/proc/self/fd"))))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self.run(rounds, fsync=False)
        finally:
            over.set()
            watcher.join()
        return looks

    def end(self) -> Told:
        """End host and participants; return what these tell. Raises RunError when they failed."""
        self.close()
        return self._child.end()

    def close(self) -> None:
        """End the host's loop."""
        self._server.close()

    def _written(self, rounds: int, *, fsync: bool) -> Path:
        self._runs += 1
        path = self._folder / f"run-{self._runs}.toml"
        text = EXPERIMENT.format(
            rounds=rounds, budget=10 * len(self._boards), fsync=str(fsync).lower(), ballast=self._ballast,
            keys=self._folder / "keys",
        )  # fmt: skip
        path.write_text(text, encoding="utf-8")
        return path


class Child:
    """A swarm's process, from its start on."""

    def __init__(self, order: Order) -> None:
        self.began_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paceline_host.swarm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        self._process.stdin.flush()
        self._told: Told | None = None

    def check(self, within_s: float) -> None:
        """Raise RunError when it has ended, or lives for longer than that."""
        if self._process.poll() is not None:
            raise RunError(f"the benchmark's participants have ended by themselves, status {self._process.returncode}")
        if time.monotonic() > self.began_s + within_s:
            raise RunError(f"the benchmark's participants did not all connect within {within_s:g} s")

    def end(self) -> Told:
        """End it; return what it tells. Raises RunError when it tells nothing."""
        if self._told is None:
            told, _ = self._process.communicate()
            if self._process.returncode:
                raise RunError(f"the benchmark's participants failed, status {self._process.returncode}")
            self._told = Told(**json.loads(told))
        return self._told

    def kill(self) -> None:
        """End it, whatever it does."""
        with self._process:  # which closes its pipes and waits
            self._process.kill()


@contextmanager
def swarm(participants: int, folder: Path, say: Callable[[str], None], ballast: int = 0) -> Iterator[Swarm]:
    """Give a host in `folder` with so many participants under way. `ballast`: floats of the model beside ten."""
    room_for(2 * participants)
    keys = [new_pair() for _ in range(participants)]
    write_pair(folder / "keys", "host", new_pair())
    (folder / "keys" / "boards").mkdir()
    for number, pair in enumerate(keys):
        (folder / "keys" / "boards" / f"p{number}.pub").write_text(pair.public + "\n", encoding="ascii")
    host = read_pair(folder / "keys" / "host.key")
    with ExitStack() as life:
        link = HostLink("tcp://127.0.0.1:*", host, read_boards(folder / "keys" / "boards"), say)
        life.callback(link.close)
        child = Child(Order(link.endpoint, host.public, _plain(keys), ballast))
        life.callback(child.kill)
        made = Swarm(link, folder, child, ballast)
        life.callback(made.close)
        yield made
        made.end()


class Floor:
    """What remains of a round without host and agent: a message to each of some sockets, and one back from each."""

    def __init__(self, sockets: int, down: Sequence[int], up: Sequence[int], say: Callable[[str], None]) -> None:
        """`down`, `up`: bytes of a message's header and payload. Raises RunError when the child does not connect."""
        host, keys = new_pair(), [new_pair() for _ in range(sockets)]
        boards = {f"p{number}": pair.public for number, pair in enumerate(keys)}
        self._header, self._payload = (bytes(size) for size in down)
        self._link = HostLink("tcp://127.0.0.1:*", host, boards, say)
        self._child = Child(Order(self._link.endpoint, host.public, _plain(keys), echo=(up[0], up[1])))
        self._routes: list[bytes] = []
        while len(self._routes) < sockets:
            self._child.check(JOIN_S)
            self._link.poll(LOOK_S)
            self._routes += [arrival.route for arrival in self._link.receive()]

    def exchange(self) -> float:
        """Return the seconds until all have answered."""
        began_s = time.perf_counter()
        for route in self._routes:
            self._link.send_to(route, self._header, self._payload)
        left = len(self._routes)
        while left:
            self._link.poll(1.0)
            came = len(list(self._link.receive()))
            if not came:
                self._child.check(float("inf"))
            left -= came
        return time.perf_counter() - began_s

    def close(self) -> None:
        """End both ends."""
        self._child.kill()
        self._link.close()


def _plain(keys: Sequence[KeyPair]) -> list[tuple[str, str]]:
    return [(pair.public, pair.secret) for pair in keys]


def measure_rounds(say: Callable[[str], None], blocks: int, rounds: int) -> dict[str, list[float]]:
    """Return seconds: of the floor's exchanges, and of rounds of ten participants without and with fsync, in turns."""
    found: dict[str, list[float]] = {FLOOR: [], NO_FSYNC: [], FSYNC: []}
    with scratch() as folder, ExitStack() as life:
        with swarm(TEN, folder / "sizes", say) as first:
            first.join()
            first.run(rounds, fsync=False)
            told = first.end()
        down, up = (_mean_size(total) for total in (told.received, told.sent))
        each = told.sent[0] / TEN / rounds
        say(f"round: {each:.1f} messages of a participant, of {up[0]} + {up[1]} bytes; to it of {down[0]} + {down[1]}")
        floor = Floor(TEN, down, up, say)
        life.callback(floor.close)
        second = life.enter_context(swarm(TEN, folder / "rounds", say))
        second.join()
        for _ in range(blocks):
            found[FLOOR] += [floor.exchange() for _ in range(rounds)]
            for name in (NO_FSYNC, FSYNC):
                with Ledger(second.run(rounds, fsync=name == FSYNC)) as ledger:
                    found[name] += [r.makespan_s for r in ledger.rounds()[1:] if r.makespan_s is not None]
    return found


def measure_joining(
    say: Callable[[str], None], participants: int, repeats: int
) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds from a swarm's start until all have joined, and until a run of one round with all has ended;
    then what the host's process holds, in MiB. Raises PacelineError.
    """
    joined, done, held_mib = [], [], []
    for _ in range(repeats):
        with scratch() as folder, swarm(participants, folder / "join", say) as many:
            joined.append(many.join())
            began_s = time.monotonic()
            with Ledger(many.run(1, fsync=True)) as ledger:
                (only,) = ledger.rounds()
                slices = ledger.slices(only.round)
            done.append(joined[-1] + time.monotonic() - began_s)
            held_mib.append(resident_mib())
            if only.closed_s is None or len({each.board for each in slices}) != participants:
                raise RunError(f"the round was not one of all {participants} participants")
    return joined, done, held_mib


def measure_flatness(
    say: Callable[[str], None], rounds: int, warm: int, participants: int = 4, ballast: int = 4086
) -> tuple[Look, Look]:
    """Return what a host's process held after `warm` rounds and at the end; of descriptors the least of each half.

    A model has 10 + `ballast` floats. Raises RunError when the run was over too soon to be looked at.
    """
    with scratch() as folder, swarm(participants, folder / "flat", say, ballast) as few:
        few.join()
        looks = [look for look in few.watched(rounds) if look.round > warm]
    if len(looks) < 4:
        raise RunError(f"only {len(looks)} looks at the host's process in {rounds - warm} rounds; take more")
    early, late = looks[: len(looks) // 2], looks[len(looks) // 2 :]
    return (
        Look(early[0].round, early[0].resident_mib, min(look.descriptors for look in early)),
        Look(late[-1].round, late[-1].resident_mib, min(look.descriptors for look in late)),
    )


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder for a while, here: where runs lie too, and not in a memory's file system."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-", dir=Path.cwd()) as folder:
        yield Path(folder)


def _mean_size(total: Sequence[int]) -> tuple[int, int]:
    """Return (header, payload) bytes of the messages of a total."""
    return round(total[1] / total[0]), round(total[2] / total[0])


def room_for(descriptors: int) -> None:
    """Let this process and its children open so many files beside a few hundred. Raises RunError."""
    needed = descriptors + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise RunError(
            f"{needed} file descriptors are needed, this session allows {hard}; raise the hard limit "
            "(/etc/security/limits.conf, LimitNOFILE)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def resident_mib() -> float:
    """Return what this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / (1 << 20)

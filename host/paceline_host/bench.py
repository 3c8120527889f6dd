# SPDX-License-Identifier: Apache-2.0
"""What paceline itself costs: allocation, sampling, an agent's start and memory, an empty round, a transfer.

Asserts nothing. Each figure comes with its median, range and number of repeats, and with the machine it was taken on.
"""

from __future__ import annotations

import hashlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from paceline import Controller, allocate, core
from paceline.errors import RunError
from paceline.keys import write_pair
from paceline.one_way import KINDS, NBYTES
from paceline.talk import Talk
from paceline.wire import FROM_AGENT, Hello, decode
from paceline_host import bench_controller as controller
from paceline_host import bench_swarm as swarm
from paceline_host import bench_transfer as transfer
from paceline_host.comparison import Comparison, Watcher, new_folder
from paceline_host.embedded import run_embedded
from paceline_host.experiment import load_experiment
from paceline_host.ledger import Ledger
from paceline_host.link import HostLink, new_pair

HELLO_S = 20.0
BOARDS = 11
SWARM_ROUNDS = 40  # in a turn, before the other kinds have theirs
OVERHEAD = """
[run]
rounds = {rounds}
budget = 100
policies = ["equal"]
fsync = {fsync}
[task]
name = "linear"
batch = 10
[fleet]
profile = "ten-unpaced"
[energy]
required = false
"""


def figure(name: str, unit: str, values: Sequence[float]) -> dict[str, object]:
    """Return one row of a benchmark."""
    return {
        "name": name,
        "unit": unit,
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
        "repeats": len(values),
    }


def machine() -> dict[str, object]:
    """Return what the figures were taken on."""
    return {
        "system": platform.platform(),
        "cpu": _processor(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "simd": next(name for name, number in core.SIMD.items() if number == core.simd_here()["best"]),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(("model name", "Model", "uarch")):
            return line.partition(":")[2].strip()
    return platform.machine()


def bench_allocate(say: Callable[[str], None]) -> list[dict[str, object]]:
    """Time one split among eleven boards, from Python, in microseconds."""
    costs = [1.0 + 0.7 * i for i in range(BOARDS)]
    boards = Controller(participants=BOARDS, budget=6000)
    for i, cost in enumerate(costs):
        boards.observe(i, seconds=cost, energy_j=2 * cost, samples=500)
    return [
        figure("allocate() for 11 boards", "us", _block_us(lambda: allocate(costs, 6000))),
        figure("Controller.allocate() for 11 boards", "us", _block_us(boards.allocate)),
    ]


def _block_us(call: Callable[[], object], blocks: int = 50, calls: int = 500) -> list[float]:
    times = []
    for _ in range(blocks):
        began_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        times.append((time.perf_counter_ns() - began_ns) / calls / 1000)
    return times


def bench_agent(say: Callable[[str], None], repeats: int = 7) -> list[dict[str, object]]:
    """Start an agent alone: seconds from the start of its process to HELLO at the host, and resident memory then."""
    seconds, mebibytes = [], []
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        home = Path(folder)
        host, board = new_pair(), new_pair()
        write_pair(home, "board", board)
        link = HostLink("tcp://127.0.0.1:*", host, {"board": board.public}, say)
        (home / "agent.toml").write_text(
            f"key_file = 'board.key'\nstate_dir = 'state'\n[host]\nendpoint = '{link.endpoint}'\n"
            f"public_key = '{host.public}'\n[meter]\nsource = 'modelled'\nidle_w = 1.0\nactive_w = 2.0\n",
            encoding="utf-8",
        )
        try:
            for _ in range(repeats):
                took_s, rss_mib = _one_start(link, home / "agent.toml")
                seconds.append(took_s)
                mebibytes.append(rss_mib)
        finally:
            link.close()
    return [figure("agent: start to HELLO", "s", seconds), figure("agent: resident memory", "MiB", mebibytes)]


def _one_start(link: HostLink, config: Path) -> tuple[float, float]:
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline_agent", "run", "--config", str(config)], stderr=subprocess.DEVNULL
    )
    try:
        while time.monotonic() - began_s < HELLO_S:
            link.poll(0.5)
            for arrival in link.receive():
                message = decode(arrival.header, FROM_AGENT)
                if isinstance(message, Hello) and message.pid == process.pid:
                    return time.monotonic() - began_s, _rss_mib(process.pid)
        raise RunError(f"no HELLO within {HELLO_S:g} s")
    finally:
        process.terminate()
        process.wait()


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RunError(f"no VmRSS of process {pid}")


def bench_round(say: Callable[[str], None], rounds: int = 200) -> list[dict[str, object]]:
    """Run rounds whose work is nothing, in ms: ten participants, ten floats, CURVE; journal with and without fsync.

    First protocol only in one process, in turns with the floor of as many and as large messages by the link alone;
    then whole agents with trainers: they share this machine's processors, as those of a real fleet do not.
    """
    rows = []
    with swarm.scratch() as folder:
        where = _file_system(folder)
        found = swarm.measure_rounds(say, rounds // SWARM_ROUNDS, SWARM_ROUNDS)
        floor_s = statistics.median(found[swarm.FLOOR])
        rows.append(figure("ten messages there and back, link alone", "ms", [s * 1000 for s in found[swarm.FLOOR]]))
        for fsync in (swarm.NO_FSYNC, swarm.FSYNC):
            name = f"round, ten protocol-only participants, {fsync}"
            if fsync == swarm.FSYNC:
                name += f" ({where})"
            rows.append(figure(name, "ms", [s * 1000 for s in found[fsync]]))
            rows.append(figure(f"{name} / link alone", "x", [s / floor_s for s in found[fsync]]))
        for fsync in ("false", "true"):
            spans = _round_of_agents(folder, rounds, fsync)
            on = f" ({where})" if fsync == "true" else ""
            rows.append(figure(f"round, ten whole agents with trainers, fsync {fsync}{on}", "ms", spans))
    return rows


def _round_of_agents(folder: Path, rounds: int, fsync: str) -> list[float]:
    """Return the milliseconds of each round but the first."""
    path = folder / f"fsync-{fsync}.toml"
    path.write_text(OVERHEAD.format(rounds=rounds, fsync=fsync), encoding="utf-8")
    home = new_folder(folder / "runs", path.stem)
    quiet = Watcher(lambda text: None, lambda policy, machine, now_s: None, lambda folder, outcome: None)
    if not run_embedded(Comparison(load_experiment(path), quiet), home, Talk("paceline", "error")):
        raise RunError("the benchmark's run did not finish")
    with Ledger(home / "equal") as ledger:
        return [r.makespan_s * 1000 for r in ledger.rounds()[1:] if r.makespan_s is not None]


def bench_join(say: Callable[[str], None], participants: int = 1000, rounds: int = 1000) -> list[dict[str, object]]:
    """Let many protocol-only participants join one host at once, in s; then see whether a host's process grows."""
    say(f"join: {rounds} rounds of four participants")  # first: what many leave free would hide what few leave behind
    first, last = swarm.measure_flatness(say, rounds, rounds // 10)
    growth = 100 * (last.resident_mib / first.resident_mib - 1)
    say(f"join: {participants} participants, three times")
    joined, done, held_mib = swarm.measure_joining(say, participants, 3)
    return [
        figure(f"{participants} join: from their start until the host has a session with each", "s", joined),
        figure(f"{participants} join: from their start to the end of a run of one round with all", "s", done),
        figure(f"{participants} join: host's resident memory with all", "MiB", held_mib),
        figure(f"host's resident memory, four participants, round {first.round}", "MiB", [first.resident_mib]),
        figure(f"host's resident memory, growth by round {last.round}", "%", [growth]),
        figure(f"host's file descriptors, round {first.round} on", "", [first.descriptors]),
        figure(f"host's file descriptors, up to round {last.round}", "", [last.descriptors]),
    ]


def bench_transfer(say: Callable[[str], None], repeats: int = 11) -> list[dict[str, object]]:
    """Send 45 MB one way, in ms: raw TCP, ZeroMQ in the clear, the link; then ratios to a median.

    Once where the kernel puts the two processes, and once with a processor each, as two machines have.
    """
    found = transfer.measure(say, repeats)
    ways = sorted({way for _, way in found})
    rows = [
        figure(f"45 MB {way}: {kind}", "ms", [s * 1000 for s in found[kind, way]]) for way in ways for kind in KINDS
    ]
    raw, plain, curve = KINDS
    ratios = [
        figure(
            f"45 MB {way}: {kind} / {peer}", "x", [s / statistics.median(found[peer, way]) for s in found[kind, way]]
        )
        for way in ways
        for kind, peer in ((plain, raw), (curve, raw), (curve, plain))
    ]
    data = bytes(NBYTES)
    hashes = [_seconds(lambda: hashlib.sha256(data).digest()) * 1000 for _ in range(repeats)]
    return [*rows, *ratios, figure("SHA-256 of 45 MB (each end, not in the above)", "ms", hashes)]


def bench_sampler(say: Callable[[str], None], rounds: int = 5) -> list[dict[str, object]]:
    """Draw epochs of 1,000,000 samples: ns a draw of paceline and its rivals, and the ratios within each round."""
    from paceline_host import bench_sampler as sampler

    rows = []
    for case in sampler.CASES:
        say(f"sampler: {case}, {case.samples} samples, log-normal sizes, {rounds} rounds")
        found = sampler.measure(case, rounds)
        rows += [figure(f"{case}: {name}", "ns", each) for name, each in found.items()]
        rows += [figure(f"{case}: {name}", "x", each) for name, each in sampler.ratios(found)]
    return rows


def _seconds(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def _file_system(path: Path) -> str:
    found = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown file system"


def bench_controller(say: Callable[[str], None]) -> list[dict[str, object]]:
    """Divide a budget among 11 to a million boards: the core from C and from Python, beside numpy, in CPU time."""
    return [figure(*row) for row in controller.measure(say)]


def bench_simulator(say: Callable[[str], None]) -> list[dict[str, object]]:
    """Simulate eleven to a million boards: seconds of CPU time."""
    from paceline_host import bench_simulator as simulator

    return [figure(*row) for row in simulator.measure(say)]


def bench_ddp(say: Callable[[str], None]) -> list[dict[str, object]]:
    """Step two ranks with our hook and without it in turn, and form groups: ms, and the hook's ratio."""
    from paceline_host import bench_ddp as ddp

    return [figure(*row) for row in ddp.measure()]


def bench_schedule(say: Callable[[str], None]) -> list[dict[str, object]]:
    """Make the order of an epoch and the batches of a round's steps, beside numpy, in CPU time."""
    from paceline_host import bench_schedule as schedule

    return [figure(*row) for row in schedule.measure(say)]


def bench_link(say: Callable[[str], None]) -> list[dict[str, object]]:
    """Ask and answer, send 1 and 10 MB one way, and 10 MB to eleven boards, beside raw TCP."""
    from paceline_host import bench_link as link

    return [figure(*row) for row in link.measure(say)]


def bench_aggregate(say: Callable[[str], None]) -> list[dict[str, object]]:
    """Verify, add and mix updates, beside this machine's memory; and see whether participants cost memory."""
    from paceline_host import bench_aggregate as aggregate

    return [figure(*row) for part in (aggregate.measure, aggregate.memory) for row in part(say)]


BENCHES = {
    "allocate": bench_allocate,
    "controller": bench_controller,
    "sampler": bench_sampler,
    "schedule": bench_schedule,
    "aggregate": bench_aggregate,
    "agent": bench_agent,
    "round": bench_round,
    "join": bench_join,
    "link": bench_link,
    "transfer": bench_transfer,
    "simulator": bench_simulator,
    "ddp": bench_ddp,
}

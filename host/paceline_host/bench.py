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
from paceline_host import bench_transfer as transfer
from paceline_host.comparison import Comparison, Watcher, new_folder
from paceline_host.embedded import run_embedded
from paceline_host.experiment import load_experiment
from paceline_host.ledger import Ledger
from paceline_host.link import HostLink, new_pair

HELLO_S = 20.0
BOARDS = 11
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
    """Run rounds whose work is nothing: ten participants, ten floats, CURVE; journal with and without fsync, in ms."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="paceline-bench-", dir=Path.cwd()) as folder:
        for fsync in ("false", "true"):
            path = Path(folder) / f"fsync-{fsync}.toml"
            path.write_text(OVERHEAD.format(rounds=rounds, fsync=fsync), encoding="utf-8")
            home = new_folder(Path(folder) / "runs", path.stem)
            quiet = Watcher(lambda text: None, lambda policy, machine, now_s: None, lambda folder, outcome: None)
            if not run_embedded(Comparison(load_experiment(path), quiet), home, Talk("paceline", "error")):
                raise RunError("the benchmark's run did not finish")
            with Ledger(home / "equal") as ledger:
                spans = [r.makespan_s * 1000 for r in ledger.rounds()[1:] if r.makespan_s is not None]
            where = "" if fsync == "false" else f" ({_file_system(home)})"
            rows.append(figure(f"round of ten trivial participants, fsync {fsync}{where}", "ms", spans))
    return rows


def bench_transfer(say: Callable[[str], None], repeats: int = 11) -> list[dict[str, object]]:
    """Send 45 MB one way, in ms: raw TCP, ZeroMQ in the clear, the link; then their ratios to the first's median."""
    found = transfer.measure(say, repeats)
    rows, ratios = [], []
    for way in (transfer.TO_AGENT, transfer.TO_HOST):
        raw_s = found[KINDS[0], way]
        for kind in KINDS:
            seconds = found[kind, way]
            rows.append(figure(f"45 MB {way}: {kind}", "ms", [s * 1000 for s in seconds]))
            if kind != KINDS[0]:
                times = [s / statistics.median(raw_s) for s in seconds]
                ratios.append(figure(f"45 MB {way}: {kind} / raw TCP", "x", times))
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


BENCHES = {
    "allocate": bench_allocate,
    "controller": bench_controller,
    "sampler": bench_sampler,
    "agent": bench_agent,
    "round": bench_round,
    "transfer": bench_transfer,
    "simulator": bench_simulator,
    "ddp": bench_ddp,
}

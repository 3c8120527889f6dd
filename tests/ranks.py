# SPDX-License-Identifier: Apache-2.0
"""Real gloo processes on loopback for tests: one process imports torch once and forks the ranks of each case."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WAIT_S = 30.0  # a bound against hanging


class Ranks:
    """`run` a function of a module on each of `world` ranks; returns what each returned, by rank."""

    def __init__(self) -> None:
        paths = os.pathsep.join(str(ROOT / name) for name in (".", "common", "agent", "host"))
        env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.ranks"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
            cwd=ROOT,
        )  # fmt: skip

    def run(self, case: str, world: int, **arguments: Any) -> list[Any]:
        """Return the ranks' results; one that raised an exception returns {"error": text}."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([case, world, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that forks ranks is gone"
        results: list[Any] = json.loads(line)
        return results

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _rank(case: str, rank: int, world: int, folder: str, arguments: dict[str, Any]) -> Any:
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store", world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=WAIT_S))
    module, name = case.split(":")
    return getattr(importlib.import_module(module), name)(rank, world, **arguments)


def main() -> None:
    """Fork the ranks of each case that a line of stdin names."""
    import torch
    import torch._dynamo  # what DistributedDataParallel imports: once here, not in each rank
    import torch.distributed

    torch.set_num_threads(1)
    for line in sys.stdin:
        case, world, arguments = json.loads(line)
        importlib.import_module(case.split(":")[0])
        with tempfile.TemporaryDirectory() as folder:
            children = []
            for rank in range(world):
                if (pid := os.fork()) == 0:
                    try:
                        result = _rank(case, rank, world, folder, arguments)
                    except BaseException as error:  # it is the case's outcome
                        traceback.print_exc()
                        result = {"error": f"{type(error).__name__}: {error}"}
                    Path(folder, f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
                    os._exit(0)
                children.append(pid)
            for pid in children:
                os.waitpid(pid, 0)
            files = [Path(folder, f"{rank}.json") for rank in range(world)]
            print(json.dumps([json.loads(f.read_text("utf-8")) if f.exists() else None for f in files]), flush=True)


if __name__ == "__main__":
    main()

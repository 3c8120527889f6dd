# SPDX-License-Identifier: Apache-2.0
"""The process that trains cells of a study: a JSON line in names a cell, JSON lines out tell how it goes.

It is one of several on a machine, so torch gets one thread (the pool sets that in the environment). It ends with its
stdin, and in the middle of a cell when nobody reads what it says.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from paceline.deviation import expected
from paceline.errors import PacelineError
from paceline.split import SplitError
from paceline_host.studies.design import plain_descent
from paceline_host.studies.variations import first_depletion, plan

SCHEMA = "paceline-study-cell-1"
RECALIBRATION_EPOCH = 1_000_000  # far from any that is trained: draws and orders of its own


def main() -> int:
    """Train what stdin names; return 0 at its end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            tell({"done": train_cell(order["cell"], order["device"])})
        except PacelineError as error:
            tell({"refused": str(error), "exit_code": error.exit_code})
        except BrokenPipeError:
            return 0
        except Exception:
            tell({"bug": traceback.format_exc()})
    return 0


def tell(document: Mapping[str, object]) -> None:
    """Say something to the pool."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def train_cell(cell: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Train one cell and return its record. A training that diverges has a record that says so."""
    from paceline.data import partition
    from paceline.split.inprocess import check_device, train
    from paceline.tasks import make, splittable

    check_device(device)
    setting, seed = cell["setting"], cell["seed"]
    method, batch = setting["method"], setting["batch"]
    options = {key: value for key, value in cell["task"].items() if key != "name"}
    folder = Path(cell["folder"]) if cell["folder"] else None
    task = splittable(make(cell["task"]["name"], options, seed, folder))
    members: list[Any] = [range(task.samples)]
    if method != "central":
        members = list(partition(task.labels(), setting["clients"], setting["partition"], seed=seed).indices())
    sizes = [len(own) for own in members]
    first = plan(method, sizes, batch, seed, 0)
    tail_begins = first_depletion(first, sizes)
    in_epoch = sum(sum(counts) for _, counts in first)
    epochs = -(-cell["epochs"] * task.samples // in_epoch)  # of epochs that are cut more: as many samples in all
    weighted = method.endswith("-weighted")
    watch = _Watch(lambda host: task.evaluate(host.model(), device).accuracy or 0.0, epochs - 1, tail_begins)
    record: dict[str, Any] = {
        "schema": SCHEMA, "cell": dict(cell), "device": device, "data_label": task.data_label,
        "effective_batch": first.effective_batch, "steps": first.steps, "epochs": epochs, "tail_begins": tail_begins,
        "clients_hold": [min(sizes), max(sizes)], "notes": list(task.notes),
    }  # fmt: skip
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    try:
        done, host = train(
            task, members, method, batch, epochs, seed=seed, device=device, plan=plan, after_step=watch,
            evaluate_every=max(1, cell["evaluate_every"] * epochs // cell["epochs"]),
            weight=(lambda samples: samples / first.effective_batch) if weighted else lambda samples: 1.0,
            told=lambda one: tell({"epoch": one.epoch + 1, "epochs": epochs}),
        )  # fmt: skip
    except SplitError as error:
        return {**record, "failed": str(error), "wall_s": time.monotonic() - began_s}
    record["cpu_s"] = time.process_time() - began_cpu_s - watch.took_s
    record["wall_s"] = time.monotonic() - began_s
    record["before_depletion"] = watch.accuracy
    record["recalibrated"] = None
    if plain_descent(cell["task"]):
        record["recalibrated"] = _recalibrated(task, host, members, batch, seed, device)
    return record | _course(done, tail_begins, task)


class _Watch:
    """Judges the model after one step: in the last epoch, when the first client has run out."""

    def __init__(self, judge: Callable[[Any], float], epoch: int, steps: int) -> None:
        self._judge, self._when = judge, (epoch, steps - 1)
        self.accuracy: float | None = None
        self.took_s = 0.0  # processor time, which is not the training's

    def __call__(self, epoch: int, step: int, host: Any) -> None:
        if (epoch, step) == self._when:
            began_s = time.process_time()
            self.accuracy = self._judge(host)
            self.took_s = time.process_time() - began_s


def _course(done: Sequence[Any], tail_begins: int, task: Any) -> dict[str, Any]:
    """Return what happened epoch by epoch, and in the last one step by step."""
    labels = [task.labels().tolist().count(c) for c in range(task.classes)]
    law = cache(lambda samples: expected(samples, labels))
    curve = [
        {
            "epoch": one.epoch + 1, "samples": one.samples, "loss": one.loss,
            "accuracy": one.evaluation.accuracy if one.evaluation else None,
            "test_loss": one.evaluation.loss if one.evaluation else None,
        }
        for one in done
    ]  # fmt: skip
    return {
        "curve": curve,
        "accuracy": curve[-1]["accuracy"],
        "deviation": _ratio([d for one in done for d in one.deviations], law),
        "deviation_before_depletion": _ratio([d for one in done for d in one.deviations[:tail_begins]], law),
        "l1": [round(d.l1, 5) for d in done[-1].deviations],
        "l1_expected": [round(law(d.samples), 5) for d in done[-1].deviations],
        "batches": list(done[-1].batches),
    }


def _ratio(deviations: Sequence[Any], law: Any) -> float:
    """Return the mean deviation in shares of what exact sampling of the same batch sizes gives."""
    return float(sum(one.l1 for one in deviations) / sum(law(one.samples) for one in deviations))


def _recalibrated(
    task: Any, host: Any, members: Sequence[Sequence[int]], batch: int, seed: int, device: str
) -> float | None:
    """Return the accuracy with BatchNorm's statistics taken anew from exact batches, the weights as they are.

    An epoch of steps whose gradients count nothing. None where the server part keeps no statistics.
    """
    from paceline.split.inprocess import pass_over

    if not any(spec.role == "buffer" for spec in task.server_manifest.tensors):
        return None
    pass_over(task, host, members, batch, seed=seed, epoch=RECALIBRATION_EPOCH, device=device)
    accuracy: float | None = task.evaluate(host.model(), device).accuracy
    return accuracy


if __name__ == "__main__":
    sys.exit(main())

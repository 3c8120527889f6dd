# SPDX-License-Identifier: Apache-2.0
"""What travels in a step of split learning, as layouts that both ends compute from the task and the schedule's counts.

A peer never says what its bytes mean: it says how many they are, and that is checked. Knows neither numpy nor torch.
"""

from __future__ import annotations

from paceline.errors import SettingsError
from paceline.split import WIRE_DTYPES, SplitError
from paceline.tasks import Buffer, SplitTask
from paceline.tensors import Manifest

BYTE_CLASSES = 256  # with so many classes at most, a label travels as one byte


def upload_manifest(task: SplitTask, samples: int, dtype: str) -> Manifest:
    """Return the layout of what a client sends for its samples: "smashed", the tensor at the cut, and "labels"."""
    kind = "uint8" if task.classes <= BYTE_CLASSES else "int32"
    return Manifest.build(
        [
            ("smashed", known(dtype), (samples, *task.smashed_shape), "buffer"),
            ("labels", kind, (samples,), "buffer"),
        ]
    )


def gradient_manifest(task: SplitTask, samples: int, dtype: str) -> Manifest:
    """Return the layout of what a client gets back: "gradient", the loss's by its smashed tensor times "scale".

    The scale is a power of two, 1 but for float16, whose smallest numbers are too large for the gradients of a mean
    over a batch.
    """
    return Manifest.build(
        [
            ("scale", "float32", (1,), "buffer"),
            ("gradient", known(dtype), (samples, *task.smashed_shape), "buffer"),
        ]
    )


def known(dtype: str) -> str:
    """Return a dtype of the wire. Raises SettingsError for any other."""
    if dtype not in WIRE_DTYPES:
        raise SettingsError([f"there is no dtype {dtype!r} for smashed tensors; known: {', '.join(WIRE_DTYPES)}"])
    return dtype


def check_size(client: int, what: str, data: Buffer, manifest: Manifest) -> memoryview:
    """Return bytes that have the layout's length. Raises SplitError."""
    view = memoryview(data).cast("B")
    if len(view) != manifest.nbytes:
        parts = ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in manifest.tensors[:2])
        more = ", ..." if len(manifest.tensors) > 2 else ""
        raise SplitError(
            client,
            f"{what} has {len(view)} bytes, expected {manifest.nbytes} ({parts}{more}); "
            "check that both ends have the same task, cut and dtype",
        )
    return view

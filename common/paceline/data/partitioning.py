# SPDX-License-Identifier: Apache-2.0
"""Who holds which sample: a training set dealt to clients, evenly or as unevenly as one wants to study.

Every sample is with exactly one client and no client is empty. Draws come from our own Philox streams and arithmetic
(`draws`), so a seed gives the same partition on every machine. Numpy comes with the arrays.
"""

from __future__ import annotations

import hashlib
import operator
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgpack

from paceline.core import PURPOSE_PARTITION, Rng, permutation, philox
from paceline.data.draws import Draws, exp
from paceline.errors import DataError
from paceline.settings import did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = "paceline-partition-2"  # behind the map stands its CRC-32
TRIES = 100  # draws of the classes, until every class has a holder
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {  # as the GPSL paper calls them
    "mild": ("dirichlet-classes", {"classes_per_client": 5, "alpha": 3.0}),
    "severe": ("dirichlet-classes", {"classes_per_client": 2, "alpha": 3.0}),
}


@dataclass(frozen=True, eq=False)
class Partition:
    """Which client holds each sample."""

    method: str
    options: Mapping[str, object]
    seed: int
    clients: int
    labels_sha256: str  # of the labels it was made for, as 32-bit little-endian numbers
    owner: NDArray[np.uint32] = field(repr=False)  # (samples,): the client of each sample

    def indices(self) -> list[NDArray[np.int64]]:
        """Return the sample numbers of each client, in increasing order."""
        import numpy as np

        order = np.argsort(self.owner, kind="stable")
        return np.split(order, np.cumsum(self.sizes())[:-1])

    def sizes(self) -> list[int]:
        """Return how many samples each client holds."""
        import numpy as np

        return [int(size) for size in np.bincount(self.owner, minlength=self.clients)]

    def table(self, labels: Sequence[int] | NDArray[Any], classes: int) -> list[list[int]]:
        """Return clients x classes: how many samples of each class a client holds."""
        import numpy as np

        flat = np.bincount(self.owner.astype(np.int64) * classes + np.asarray(labels), minlength=self.clients * classes)
        return [[int(count) for count in row] for row in flat.reshape(self.clients, classes)]

    def to_bytes(self) -> bytes:
        """Return a compact form, for the run's folder: a byte or two a sample before compression."""
        width = 1 if self.clients <= 1 << 8 else 2 if self.clients <= 1 << 16 else 4
        packed = zlib.compress(self.owner.astype(f"<u{width}").tobytes(), 6)
        head = {
            "schema": SCHEMA, "method": self.method, "options": dict(self.options), "seed": self.seed,
            "clients": self.clients, "samples": len(self.owner), "labels_sha256": self.labels_sha256, "width": width,
            "owner": packed,
        }  # fmt: skip
        body = bytes(msgpack.packb(head))
        return body + zlib.crc32(body).to_bytes(4, "little")

    @classmethod
    def from_bytes(cls, data: bytes, labels: Sequence[int] | NDArray[Any] | None = None) -> Partition:
        """Read `to_bytes` back. Raises DataError: damaged, or made for other labels than these."""
        import numpy as np

        try:
            if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
                raise ValueError("its checksum is another, or it is of another version")
            head = msgpack.unpackb(data[:-4])
            if head["schema"] != SCHEMA:
                raise ValueError(f"its schema is {head['schema']!r:.40}, expected {SCHEMA}")
            width, samples = head["width"], head["samples"]
            if width not in (1, 2, 4) or type(samples) is not int or not 0 < samples < 1 << 32:
                raise ValueError("its head makes no sense")
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(head["owner"], width * samples)
            if len(raw) != width * samples or unpacker.decompress(unpacker.unconsumed_tail, 1) or not unpacker.eof:
                raise ValueError("it holds another number of samples than it says")
            owner = np.frombuffer(raw, f"<u{width}").astype(np.uint32)
            made = cls(
                str(head["method"]), dict(head["options"]), int(head["seed"]), int(head["clients"]),
                str(head["labels_sha256"]), owner,
            )  # fmt: skip
            if not int(owner.max()) < made.clients <= samples or 0 in made.sizes():
                raise ValueError("a client is empty or unknown")
        except (ValueError, KeyError, TypeError, zlib.error, msgpack.UnpackException) as error:
            raise DataError(f"the partition is damaged ({error}); make it anew: `paceline data partition`") from None
        if labels is not None and _digest(np.asarray(labels)) != made.labels_sha256:
            raise DataError(
                f"the partition was made for other labels ({samples} of them) than this data's; make it anew: "
                "`paceline data partition`"
            )
        return made


def partition(
    labels: Sequence[int] | NDArray[Any],
    clients: int | None = None,
    method: str = "iid",
    *,
    classes_per_client: int = 2,
    alpha: float = 3.0,
    shards_per_client: int = 2,
    column: Sequence[Any] | NDArray[Any] | None = None,
    seed: int = 1,
) -> Partition:
    """Deal the samples with these labels to clients.

    iid: a random order, cut into near-equal parts.
    dirichlet: each class by shares drawn from Dirichlet(alpha); small alpha is uneven.
    dirichlet-classes: Extended Dirichlet (arXiv 2302.01633): each client may hold `classes_per_client` classes, drawn
        so that classes have about equally many holders; each class by Dirichlet(alpha) over its holders. "mild" and
        "severe" are this with 5 and 2 classes and alpha 3, whatever is given for these two.
    shards: sorted by label and cut into near-equal shards, of which each client gets `shards_per_client`.
    natural: by `column`, a value a sample: one client a value, or, with fewer clients, whole values dealt to them.

    A client that a draw left empty gets one sample that it may hold, of the client with most of them. Raises DataError
    where that cannot be.
    """
    import numpy as np

    numbers = np.asarray(labels)
    if numbers.ndim != 1 or not len(numbers) or numbers.dtype.kind not in "iu":
        raise DataError(f"labels: expected a flat sequence of whole numbers, one a sample, got shape {numbers.shape}")
    if (low := int(numbers.min())) < 0 or (high := int(numbers.max())) >= 1 << 32:
        raise DataError(f"labels hold {low if low < 0 else high}; expected whole numbers from 0 to 2^32 - 1")
    seed = _whole(seed, "seed", 0, (1 << 64) - 1)
    clients = None if clients is None else _whole(clients, "clients", 1, (1 << 32) - 1)
    name, preset = PRESETS.get(method, (method, {}))
    classes_per_client = _whole(classes_per_client, "classes_per_client", 1, (1 << 32) - 1)
    shards_per_client = _whole(shards_per_client, "shards_per_client", 1, (1 << 32) - 1)
    every: dict[str, dict[str, Any]] = {
        "iid": {},
        "dirichlet": {"alpha": alpha},
        "dirichlet-classes": {"classes_per_client": classes_per_client, "alpha": alpha},
        "shards": {"shards_per_client": shards_per_client},
        "natural": {},
    }
    options = every.get(name, {}) | preset
    if name not in MAKERS:
        raise DataError(f"there is no partition method {method!r}; {did_you_mean(method, list(METHODS))}")
    if name == "natural":
        if column is None or len(column) != len(numbers):
            raise DataError(
                f"natural: expected a column with one value for each of {len(numbers)} samples, "
                f"got {'none' if column is None else len(column)}"
            )
        plain = np.asarray(column)
        try:
            values = np.unique(plain, return_inverse=True)[1].reshape(-1)
        except TypeError:
            raise DataError("natural: the column holds values of kinds that cannot be compared") from None
        if plain.shape != numbers.shape:
            raise DataError(f"natural: expected a flat column, one value a sample, got shape {plain.shape}")
        clients = int(values.max()) + 1 if clients is None else clients
        options = {"values": values}
    if clients is None:
        raise DataError("clients is None; expected how many clients there are, at least 1")
    if clients > len(numbers):
        raise DataError(f"{len(numbers)} samples are too few for {clients} clients with one each; take fewer clients")
    owner = MAKERS[name](numbers, clients, seed, **options)
    options.pop("values", None)
    return Partition(name, options, seed, clients, _digest(numbers), owner)


def _whole(value: int, name: str, least: int, most: int) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is None or not least <= whole <= most:
        raise DataError(f"{name} is {value!r}; expected a whole number from {least} to {most}")
    return whole


# The methods --------------------------------------------------------------------------------------------------------


def _iid(labels: NDArray[Any], clients: int, seed: int) -> NDArray[np.uint32]:
    return _dealt(_shuffled(len(labels), seed), clients)


def _shards(labels: NDArray[Any], clients: int, seed: int, shards_per_client: int) -> NDArray[np.uint32]:
    import numpy as np

    shards = clients * shards_per_client
    if shards > len(labels):
        raise DataError(f"shards: {clients} clients x {shards_per_client} shards of {len(labels)} samples; take fewer")
    of_shard = (np.asarray(_shuffled(shards, seed)) // shards_per_client).astype(np.uint32)
    owner = np.empty(len(labels), np.uint32)
    owner[np.argsort(labels, kind="stable")] = np.repeat(of_shard, _near_equal(len(labels), shards))
    return owner


def _dirichlet(labels: NDArray[Any], clients: int, seed: int, alpha: float) -> NDArray[np.uint32]:
    import numpy as np

    held = {int(c): list(range(clients)) for c in np.unique(labels)}
    return _by_shares(labels, clients, seed, alpha, held, 0)


def _dirichlet_classes(
    labels: NDArray[Any], clients: int, seed: int, classes_per_client: int, alpha: float
) -> NDArray[np.uint32]:
    import numpy as np

    classes = [int(c) for c in np.unique(labels)]  # a class without samples is offered to nobody
    if classes_per_client > len(classes):
        raise DataError(
            f"dirichlet-classes: {classes_per_client} classes per client, but the labels have {len(classes)} classes"
        )
    if clients * classes_per_client < len(classes):
        raise DataError(
            f"dirichlet-classes: {clients} clients x {classes_per_client} cannot hold all {len(classes)} classes; "
            "take more clients or more classes per client"
        )
    for attempt in range(TRIES):
        held = _holders(classes, clients, classes_per_client, Draws(Rng(seed, PURPOSE_PARTITION, attempt, 0)))
        if all(held.values()):
            return _by_shares(labels, clients, seed, alpha, held, attempt)
    raise DataError(f"dirichlet-classes: in {TRIES} draws a class stayed without a holder; take more clients")


def _holders(classes: list[int], clients: int, each: int, draws: Draws) -> dict[int, list[int]]:
    """Return the clients that may hold each class: every client draws distinct classes, those with few holders first.

    The chance of a class is in proportion to exp(-M (holders - fewest holders)), M classes. Subtracting the fewest
    changes nothing but keeps the weights from all becoming 0.
    """
    held: dict[int, list[int]] = {c: [] for c in classes}
    for client in range(clients):
        fewest = min(len(holders) for holders in held.values())
        weights = {c: exp(-float(len(classes) * (len(held[c]) - fewest))) for c in classes}
        for _ in range(each):
            rest = list(weights)
            if not any(weights.values()):  # all classes with few holders are taken; the others' chances are too small
                fewest = min(len(held[c]) for c in rest)
                weights = {c: exp(-float(len(classes) * (len(held[c]) - fewest))) for c in rest}
            chosen = rest[draws.choose(list(weights.values()))]
            del weights[chosen]
            held[chosen].append(client)
    return held


def _by_shares(
    labels: NDArray[Any], clients: int, seed: int, alpha: float, held: Mapping[int, list[int]], attempt: int
) -> NDArray[np.uint32]:
    """Deal each class to its holders: shares from Dirichlet(alpha), then each sample on its own."""
    import numpy as np

    try:
        is_good = 1e-3 <= alpha <= 1e6
    except TypeError:
        is_good = False
    if not is_good:
        raise DataError(f"alpha is {alpha!r}; expected a number from 0.001 to 1,000,000")
    owner = np.empty(len(labels), np.uint32)
    for place, (label, holders) in enumerate(sorted(held.items())):
        rng = Rng(seed, PURPOSE_PARTITION, attempt, 1 + place)
        edges = [int(edge * (1 << 32)) for edge in accumulate(Draws(rng).dirichlet(alpha, len(holders)))]
        edges[-1] = 1 << 32
        where = np.flatnonzero(labels == label)
        owner[where] = [holders[bisect_right(edges, rng.word())] for _ in range(len(where))]
    _fill(owner, labels, clients, held)
    return owner


def _natural(labels: NDArray[Any], clients: int, seed: int, values: NDArray[Any]) -> NDArray[np.uint32]:
    import numpy as np

    counts = np.bincount(values)
    if clients > len(counts):
        raise DataError(
            f"natural: {len(counts)} values of the column for {clients} clients; take {len(counts)} clients"
        )
    if clients == len(counts):
        return values.astype(np.uint32)
    of_value = np.empty(len(counts), np.uint32)
    load = [0] * clients
    for value in sorted(_shuffled(len(counts), seed), key=lambda v: -int(counts[v])):  # ties in a random order
        client = load.index(min(load))
        of_value[value] = client
        load[client] += int(counts[value])
    owner: NDArray[np.uint32] = of_value[values]
    return owner


MAKERS: dict[str, Callable[..., NDArray[np.uint32]]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "dirichlet-classes": _dirichlet_classes,
    "shards": _shards,
    "natural": _natural,
}
METHODS = (*MAKERS, *PRESETS)


def _fill(owner: NDArray[np.uint32], labels: NDArray[Any], clients: int, held: Mapping[int, list[int]]) -> None:
    """Give each empty client the last sample of a class it may hold, from whoever has most samples of that class."""
    import numpy as np

    sizes = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes == 0):
        best: tuple[int, int, int] | None = None  # samples of the class, -label, giver
        for label, holders in held.items():
            if client not in holders:
                continue
            of_class = np.bincount(owner[labels == label], minlength=clients)
            of_class[sizes < 2] = 0  # nobody is emptied for it
            giver = int(of_class.argmax())
            if of_class[giver] and (best is None or (int(of_class[giver]), -label) > best[:2]):
                best = int(of_class[giver]), -label, giver
        if best is None:
            raise DataError(
                f"client {client} would hold no sample: the classes it may hold have too few; take fewer clients, or "
                "more classes per client"
            )
        sample = np.flatnonzero((labels == -best[1]) & (owner == best[2]))[-1]
        owner[sample] = client
        sizes[best[2]] -= 1
        sizes[client] = 1


def _shuffled(n: int, seed: int) -> Sequence[int]:
    """Return a random order of 0..n-1, of a stream that no epoch of training uses."""
    low, high, _, _ = philox((0, 0, 0, PURPOSE_PARTITION), (seed & 0xFFFFFFFF, seed >> 32))
    return permutation(high << 32 | low, 0, n)


def _dealt(order: Sequence[int], clients: int) -> NDArray[np.uint32]:
    import numpy as np

    owner = np.empty(len(order), np.uint32)
    owner[np.asarray(order)] = np.repeat(np.arange(clients, dtype=np.uint32), _near_equal(len(order), clients))
    return owner


def _near_equal(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


def _digest(labels: NDArray[Any]) -> str:
    return hashlib.sha256(labels.astype("<u4").tobytes()).hexdigest()

# SPDX-License-Identifier: Apache-2.0
"""The C core from Python, and the only module that touches ffi: plain numbers and sequences in, the same out.

Names are those of paceline.h without pl_. A handle owns the memory that C works in; use one from one thread at a time.
A status code becomes a CoreError with a sentence. What a number means stands in paceline.h.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from typing import Any, Self, TypeAlias

from paceline._core import ffi, lib
from paceline.errors import CoreError

Buffer: TypeAlias = Any  # whatever has one: bytes, a memoryview, an array of numpy

U32_MAX = 0xFFFFFFFF
U64_MAX = 0xFFFFFFFFFFFFFFFF
UNKNOWN = math.nan
PURPOSE_PARTITION = int(lib.PL_PURPOSE_PARTITION)
PURPOSE_AUGMENT = int(lib.PL_PURPOSE_AUGMENT)

_SENTENCES = {
    lib.PL_ERR_ARGUMENT: "a count, index or setting is outside its range",
    lib.PL_ERR_REPORT: "no measurement: seconds must be finite and above 0, fixed and waiting amounts not below 0",
    lib.PL_ERR_LIMITS: "a minimum is above its capacity",
    lib.PL_ERR_ROOM: "the memory handed over is too small",
    lib.PL_ERR_STATE: "the saved state is damaged, cut short or of another version",
    lib.PL_ERR_ORDER: "readings must follow each other in time; this one is not after the last, or absurdly far ahead",
    lib.PL_ERR_TOTAL: f"the pools must sum to no more than {U32_MAX} samples",
    lib.PL_ERR_EMPTY: "fewer samples are left than are asked for",
    lib.PL_ERR_KIND: "one integrator takes one kind of reading only (interval, point or counter)",
}


def _check(status: int, where: str) -> None:
    """Raise CoreError unless the status says that all is well."""
    if status != lib.PL_OK:
        raise CoreError(f"{where}: {_SENTENCES[status]} ({ffi.string(ffi.cast('enum pl_status', status))})")


def _check_split(status: int, where: str, budget: int, missing: int) -> None:
    """Raise CoreError for a status of an allocation; the text names the missing samples."""
    if status == lib.PL_ERR_MINIMA:
        raise CoreError(
            f"{where}: a budget of {budget} samples is {missing} short of the sum of the minima; "
            f"raise it to {budget + missing} or lower the minima"
        )
    if status == lib.PL_ERR_CAPACITY:
        raise CoreError(
            f"{where}: {missing} samples of a budget of {budget} find no place within the capacities; "
            f"lower it to {budget - missing} or raise the capacities"
        )
    _check(status, where)


def _unsigned(value: int, name: str, most: int = U32_MAX) -> int:
    """Return an integer of [0, most]; anything else is a CoreError that names it."""
    try:
        if 0 <= value.__index__() <= most:
            return value.__index__()
    except AttributeError:
        pass
    raise CoreError(f"{name} is {value!r}; expected a whole number from 0 to {most}")


def _cdata(kind: str, code: str, values: Iterable[float], name: str) -> tuple[Any, int]:
    """Return values as a C array (no copy from a matching buffer) and their count."""
    if isinstance(values, list | tuple):
        items: list[Any] | tuple[Any, ...] = values
    else:
        try:
            view = memoryview(values)  # type: ignore[arg-type]  # what is no buffer is caught
        except TypeError:
            items = list(values)
        else:
            if view.format == code and view.ndim == 1 and view.c_contiguous and view.itemsize == ffi.sizeof(kind):
                return ffi.from_buffer(f"{kind}[]", view), len(view)
            items = view.tolist()
    try:
        return ffi.new(f"{kind}[]", items), len(items)
    except (TypeError, OverflowError) as error:
        wanted = "numbers" if kind == "double" else f"whole numbers from 0 to {U32_MAX}"
        raise CoreError(f"{name}: expected a flat sequence of {wanted} ({error})") from None


def _doubles(values: Iterable[float], name: str) -> tuple[Any, int]:
    return _cdata("double", "d", values, name)


def _words(values: Iterable[int], name: str) -> tuple[Any, int]:
    return _cdata("uint32_t", "I", values, name)


def _limits(value: int | Iterable[int] | None, n: int, name: str) -> Any:
    """Return one limit for all, or one each, as a C array of n; None: NULL."""
    if value is None:
        return ffi.NULL
    if isinstance(value, int):
        return ffi.new("uint32_t[]", [_unsigned(value, name)] * n)
    words, count = _words(value, name)
    if count != n:
        raise CoreError(f"{name} holds {count} values for {n} participants; expected one each, or one number for all")
    return words


# Sums


def sums_add(values: Buffer, weight: float, sums: Buffer) -> None:
    """Add weight * values to sums: as many float32 as doubles, the latter writable."""
    to = ffi.from_buffer("double[]", sums, require_writable=True)
    lib.pl_sums_add(len(to), weight, _float32(values, len(to)), to)


def sums_distance(values: Buffer, base: Buffer) -> float:
    """Return the sum of squares of values - base, both float32; not finite if and only if one of them is not."""
    n = memoryview(values).nbytes // 4
    return float(lib.pl_sums_distance(n, _float32(values, n), _float32(base, n)))


def sums_mix(model: Buffer, update: Buffer, weight: float, out: Buffer) -> None:
    """Write (1 - weight) * model + weight * update into out, all float32."""
    n = memoryview(model).nbytes // 4
    to = ffi.from_buffer("uint8_t[]", out, require_writable=True)
    if len(to) != 4 * n:
        raise CoreError(f"sums: {len(to)} bytes for {n} float32")
    lib.pl_sums_mix(n, weight, _float32(model, n), _float32(update, n), to)


def _float32(values: Buffer, n: int) -> Any:
    data = ffi.from_buffer("uint8_t[]", values)
    if len(data) != 4 * n:
        raise CoreError(f"sums: {len(data)} bytes; expected {n} float32, {4 * n} bytes")
    return data


# Random words, permutation


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    """Return one block of Philox4x32-10: four words."""
    out = ffi.new("uint32_t[4]")
    lib.pl_philox(counter, key, out)
    return list(out)


class Rng:
    """A stream of random words, named by (seed, purpose, epoch, step)."""

    def __init__(self, seed: int, purpose: int, epoch: int, step: int) -> None:
        self._rng = ffi.new("pl_rng *")
        seed, purpose = _unsigned(seed, "seed", U64_MAX), _unsigned(purpose, "purpose")
        lib.pl_rng_start(self._rng, seed, purpose, _unsigned(epoch, "epoch"), _unsigned(step, "step"))

    def word(self) -> int:
        """Return the next word."""
        return int(lib.pl_rng_word(self._rng))

    def below(self, n: int) -> int:
        """Return an unbiased integer of [0, n), n >= 1."""
        return int(lib.pl_rng_below(self._rng, _unsigned(n, "n")))


def permutation(seed: int, epoch: int, n: int) -> array[int]:
    """Return the permutation of 0..n-1 that (seed, epoch) names, as unsigned 32-bit integers in an array (a buffer)."""
    out = array("I", bytes(4 * _unsigned(n, "n")))
    where = ffi.from_buffer("uint32_t[]", out, require_writable=True)
    lib.pl_permutation(_unsigned(seed, "seed", U64_MAX), _unsigned(epoch, "epoch"), n, where)
    return out


# Allocation


def allocate(
    costs: Iterable[float], budget: int, minimum: int | Iterable[int] = 1, capacity: int | Iterable[int] | None = None
) -> list[int]:
    """Return shares in inverse proportion to costs, whole, within the limits, with a sum of exactly budget.

    Limits are one number for all or one each; capacity None is no limit. CoreError says which samples are missing.
    """
    numbers, n = _doubles(costs, "costs")
    shares, missing = ffi.new("uint32_t[]", n), ffi.new("uint64_t *")
    least = ffi.NULL if type(minimum) is int and minimum == 1 else _limits(minimum, n, "minimum")
    most = ffi.NULL if capacity is None else _limits(capacity, n, "capacity")
    budget = _unsigned(budget, "budget")
    status = lib.pl_allocate(n, numbers, budget, least, most, ffi.new("pl_seat[]", n), shares, missing)
    if status == lib.PL_ERR_ARGUMENT:
        raise CoreError(f"allocate: each cost must be a number from 1e-100 to 1e100, these are {list(numbers)}")
    if status != lib.PL_OK:
        _check_split(status, "allocate", budget, missing[0])
    return list(shares)


def prepared_allocate(costs: Iterable[float], budget: int) -> Callable[[], None]:
    """Return a call that does nothing but the C core's allocation, in memory that is there; for benchmarks."""
    numbers, n = _doubles(costs, "costs")
    seats, shares, missing = ffi.new("pl_seat[]", n), ffi.new("uint32_t[]", n), ffi.new("uint64_t *")

    def call() -> None:
        lib.pl_allocate(n, numbers, budget, ffi.NULL, ffi.NULL, seats, shares, missing)

    return call


# Controller


class ControllerHandle:
    """Memory and calls of a pl_controller."""

    def __init__(self) -> None:
        self._c = ffi.new("pl_controller *")
        self._memory: tuple[Any, Any, Any] = (None, None, None)

    @classmethod
    def init(
        cls,
        participants: int,
        budget: Iterable[int],
        group_of: Iterable[int] | None,
        config: dict[str, float],
    ) -> ControllerHandle:
        """Make a controller; config as pl_controller_config, absent keys are defaults."""
        self = cls()
        participants = _unsigned(participants, "participants")
        budgets, n_groups = _words(budget, "budget")
        groups = ffi.NULL if group_of is None else _limits(group_of, participants, "groups")
        room = self._make(participants, n_groups)
        settings = ffi.new("pl_controller_config *", config)
        status = lib.pl_controller_init(self._c, settings, participants, groups, n_groups, budgets, room, *self._memory)
        if status == lib.PL_ERR_ARGUMENT:
            raise CoreError(
                "Controller: expected w_energy and w_time finite, not below 0 and not both 0 (w_time None is "
                "1 - w_energy), ema in (0, 1], deadband finite, at least one group, group indices below their number"
            )
        _check(status, "Controller")
        return self

    @classmethod
    def load(cls, state: bytes) -> ControllerHandle:
        """Make a controller from what save() returned."""
        self = cls()
        n, n_groups = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        data = ffi.from_buffer("uint8_t[]", state)
        _check(lib.pl_controller_shape(data, len(state), n, n_groups), "Controller state")
        room = self._make(n[0], n_groups[0])
        _check(lib.pl_controller_load(self._c, data, len(state), room, *self._memory), "Controller state")
        return self

    def _make(self, n: int, n_groups: int) -> int:
        room = max(n, 1)
        people, seats = ffi.new("pl_participant[]", room), ffi.new("pl_seat[]", room)
        self._memory = (people, seats, ffi.new("pl_group[]", max(n_groups, 1)))
        return room

    def save(self) -> bytes:
        """Return the state as bytes that mean the same on every machine."""
        out = ffi.new("uint8_t[]", lib.pl_controller_size(self._c))
        _check(lib.pl_controller_save(self._c, out, len(out)), "Controller state")
        return bytes(ffi.buffer(out))

    @property
    def n(self) -> int:
        """Participants, present or not."""
        return int(self._c.n)

    @property
    def n_groups(self) -> int:
        return int(self._c.n_groups)

    def _index(self, i: int) -> int:
        if not 0 <= i < self._c.n:
            raise CoreError(f"there is no participant {i}; this controller has 0 to {self._c.n - 1}")
        return i

    def _group(self, group: int) -> int:
        if not 0 <= group < self._c.n_groups:
            raise CoreError(f"there is no group {group}; this controller has 0 to {self._c.n_groups - 1}")
        return group

    def add(self, group: int) -> int:
        """Add a participant; returns its index."""
        if self._c.n == self._c.room:
            self._grow()
        _check(lib.pl_controller_add(self._c, self._group(group)), "add")
        return self.n - 1

    def _grow(self) -> None:
        old, _, groups = self._memory
        room = 2 * self._c.room
        people, seats = ffi.new("pl_participant[]", room), ffi.new("pl_seat[]", room)
        ffi.memmove(people, old, ffi.sizeof(old))
        self._memory = (people, seats, groups)
        self._c.participants, self._c.seats, self._c.room = people, seats, room

    def limit(self, i: int, minimum: int, capacity: int | None) -> None:
        """Set a participant's limits, taken literally; capacity None is no limit."""
        most = lib.PL_NO_CAPACITY if capacity is None else _unsigned(capacity, "capacity")
        _check(
            lib.pl_controller_limit(self._c, self._index(i), _unsigned(minimum, "minimum"), most), f"participant {i}"
        )

    def limits(self, i: int) -> tuple[int, int | None]:
        """Return a participant's minimum and capacity."""
        p = self._c.participants[self._index(i)]
        return int(p.minimum), None if p.capacity == lib.PL_NO_CAPACITY else int(p.capacity)

    def set_budget(self, group: int, budget: int) -> None:
        _check(lib.pl_controller_budget(self._c, self._group(group), _unsigned(budget, "budget")), "budget")

    def budgets(self) -> list[int]:
        return [int(self._c.groups[g].budget) for g in range(self._c.n_groups)]

    def lapsed(self) -> list[int]:
        return [int(self._c.groups[g].lapsed) for g in range(self._c.n_groups)]

    def observe(self, i: int, report: tuple[float, float, float, float, float], samples: int) -> None:
        """Take a report: seconds, energy_j (UNKNOWN: not known), fixed_seconds, wait_seconds, wait_energy_j."""
        filled = ffi.new("pl_report *", (*report, _unsigned(samples, "samples")))
        _check(lib.pl_controller_observe(self._c, self._index(i), filled), f"report of participant {i}")

    def remove(self, i: int) -> None:
        _check(lib.pl_controller_remove(self._c, self._index(i)), "remove")

    def restore(self, i: int) -> None:
        _check(lib.pl_controller_restore(self._c, self._index(i)), "restore")

    def costs(self) -> list[float]:
        out = ffi.new("double[]", self._c.n)
        lib.pl_controller_costs(self._c, out)
        return list(out)

    def allocate(self) -> list[int]:
        """End the round; returns the shares."""
        shares, missing, at = ffi.new("uint32_t[]", self._c.n), ffi.new("uint64_t *"), ffi.new("uint32_t *")
        status = lib.pl_controller_allocate(self._c, shares, missing, at)
        if status != lib.PL_OK:
            where = "allocate" if self._c.n_groups == 1 else f"allocate, group {at[0]}"
            _check_split(status, where, int(self._c.groups[at[0]].budget), missing[0])
        return list(shares)

    def add_wait(self, i: int, seconds: float, energy_j: float) -> None:
        """Take what a participant drew while it waited, without a report of work."""
        if not (0.0 < seconds < math.inf and 0.0 < energy_j < math.inf):
            raise CoreError(f"participant {i}: a wait has seconds and joules above 0, these are {seconds}, {energy_j}")
        p = self._c.participants[self._index(i)]
        p.wait_seconds += seconds
        p.wait_energy_j += energy_j

    def set_shares(self, shares: Sequence[int]) -> None:
        """Let these be the shares of the last allocation."""
        for i, share in enumerate(shares):
            self._c.participants[i].share = share

    def value(self, name: str, i: int) -> Any:
        """Return one field of pl_participant, of one."""
        return getattr(self._c.participants[self._index(i)], name)

    def column(self, name: str) -> list[Any]:
        """Return one field of pl_participant, for all."""
        return [getattr(self._c.participants[i], name) for i in range(self._c.n)]

    def flags(self, i: int) -> dict[str, bool]:
        """Return the flags of a participant by name: present, reported, energy_held, energy_unknown, report_held."""
        bits = lib.pl_controller_flags(self._c, self._index(i))
        return {name: bool(bits & bit) for name, bit in _FLAGS.items()}


_FLAGS = {
    "present": lib.PL_FLAG_PRESENT,
    "reported": lib.PL_FLAG_REPORTED,
    "energy_held": lib.PL_FLAG_ENERGY_HELD,
    "energy_unknown": lib.PL_FLAG_ENERGY_UNKNOWN,
    "report_held": lib.PL_FLAG_REPORT_HELD,
}


# Frontier

GOALS = {
    "time": int(lib.PL_GOAL_TIME),
    "energy": int(lib.PL_GOAL_ENERGY),
    "edp": int(lib.PL_GOAL_EDP),
    "deadline": int(lib.PL_GOAL_DEADLINE),
    "factor": int(lib.PL_GOAL_FACTOR),
    "budget": int(lib.PL_GOAL_BUDGET),
}
PACE_FORMAT = "6d3I4x"  # of a pl_pace in a buffer, in the order of its fields


def frontier_plan(
    goal: str, limit: float, paces: Any, budgets: Sequence[int], times: Sequence[float]
) -> tuple[str, list[int], dict[str, float], list[tuple[float, float]]]:
    """Return what became of it, shares, the figures of pl_frontier, and the curve (seconds, joules).

    paces: rows in the order of pl_pace's fields, or a buffer of such structs. What became of it: "" (a plan), "reach"
    (the limit cannot be kept: `nearest`); everything else is a CoreError.
    """
    if isinstance(paces, list | tuple):
        try:
            rows = ffi.new("pl_pace[]", paces)
        except (TypeError, OverflowError) as error:
            raise CoreError(f"frontier: a board's figures are no numbers of their kind ({error})") from None
    else:
        rows = ffi.from_buffer("pl_pace[]", paces)
    n, n_groups = len(rows), len(budgets)
    out, shares = ffi.new("pl_frontier *"), ffi.new("uint32_t[]", n)
    corners = ffi.new("pl_corner[]", 4 * n + 2 * n_groups)
    status = lib.pl_frontier_plan(
        ffi.new("pl_goal *", (limit, GOALS[goal])), n, rows, n_groups, ffi.new("uint32_t[]", budgets), len(times),
        times, ffi.new("pl_lane[]", n), ffi.new("pl_lot[]", n_groups), corners, shares, out,
    )  # fmt: skip
    if status in (lib.PL_ERR_MINIMA, lib.PL_ERR_CAPACITY):
        where = "frontier" if n_groups == 1 else f"frontier, group {out.at}"
        _check_split(status, where, budgets[out.at], out.missing)
    if status != lib.PL_ERR_REACH:
        _check(status, f"frontier, board {out.at} of {n} (figures within [0, 1e100], seconds a sample above 0)")
    names = ("seconds", "energy_j", "real_seconds", "real_j", "slack_j", "least_seconds", "least_j", "nearest")
    figures = {name: float(getattr(out, name)) for name in names} | {"at": int(out.at)}
    curve = [(float(corners[k].seconds), float(corners[k].joules)) for k in range(out.n_corners)]
    return ("reach" if status else ""), ffi.unpack(shares, n) if n else [], figures, curve


def prepared_frontier(goal: str, limit: float, paces: Any, budget: int) -> Callable[[], tuple[float, float]]:
    """Return a call of the C core's frontier for one group, in memory that is there; for benchmarks.

    It returns the joules of the plan and those of the optimum in real samples. paces: a buffer of pl_pace.
    """
    rows = ffi.from_buffer("pl_pace[]", paces)
    n, out, wanted = len(rows), ffi.new("pl_frontier *"), ffi.new("pl_goal *", (limit, GOALS[goal]))
    budgets, shares = ffi.new("uint32_t[]", [budget]), ffi.new("uint32_t[]", n)
    lanes, lots, corners = ffi.new("pl_lane[]", n), ffi.new("pl_lot[]", 1), ffi.new("pl_corner[]", 4 * n + 2)

    def call() -> tuple[float, float]:
        status = lib.pl_frontier_plan(wanted, n, rows, 1, budgets, 0, ffi.NULL, lanes, lots, corners, shares, out)
        _check(status, "frontier")
        return out.energy_j, out.real_j

    return call


class Fit:
    """A pl_fit: fixed seconds and pace of one board, from the totals that it tells."""

    FIELDS = tuple(name for name, _ in ffi.typeof("pl_fit").fields)

    def __init__(self, values: Iterable[float] = ()) -> None:
        """Make one that knows nothing, or one from the values of another."""
        self._f = ffi.new("pl_fit *")
        for name, value in zip(self.FIELDS, values, strict=False):
            setattr(self._f, name, int(value) if name == "reports" else value)

    def observe(self, seconds: float, samples: int) -> None:
        """Take a report."""
        _check(lib.pl_fit_observe(self._f, seconds, _unsigned(samples, "samples")), "fit")

    def values(self) -> tuple[float, ...]:
        """Return all fields."""
        return tuple(getattr(self._f, name) for name in self.FIELDS)

    def __getattr__(self, name: str) -> float:
        return float(getattr(self._f, name))

    @property
    def is_affine(self) -> bool:
        """Whether the affine model foretells clearly better."""
        return bool(lib.pl_fit_is_affine(self._f))


# Sampler, schedule

SIMD = {name: getattr(lib, f"PL_SIMD_{name.upper()}") for name in ("portable", "sse2", "avx2", "avx512", "neon")}
Steps: TypeAlias = "tuple[array[int], array[int], array[int]]"  # ids, counts, and where each step ends in them
_CALLS = ("draw", "commit", "void", "skip", "count", "counts", "set_count", "add", "save")
_FENWICK = {name: getattr(lib, f"pl_sampler_{name}") for name in _CALLS}
_ENGINE = {name: getattr(lib, f"pl_engine_{name}") for name in _CALLS}


@functools.cache
def simd_here() -> dict[str, int]:
    """Return the instructions that this machine has for sampling, and as "best" the best of them."""
    here = {name: number for name, number in SIMD.items() if lib.pl_engine_has(number)}
    return {"best": max(here.values()), **here}


class SamplerHandle:
    """Memory and calls of a pl_sampler (a Fenwick tree), with the buffers of its draws."""

    def __init__(self, simd: str = "best") -> None:
        if simd not in ("best", *SIMD):  # it needs none of them, but a name that is none is a mistake
            raise CoreError(f"simd is {simd!r}; expected one of best, {', '.join(SIMD)}")
        self._own = self._s = ffi.new("pl_sampler *")
        self._memory = ffi.new("uint32_t[]", 1)
        self._room = 1
        self._ids, self._counts = ffi.new("uint32_t[]", 1), ffi.new("uint32_t[]", 1)
        self._n_ids = ffi.new("uint32_t *")
        self._c = _FENWICK

    simd = "portable"

    @classmethod
    def init(cls, counts: Iterable[int], seed: int, epoch: int, simd: str = "best") -> Self:
        """Make a sampler over pools of these counts, at step 0."""
        self = cls(simd)
        pools, n = _words(counts, "counts")
        self._begin(_unsigned(seed, "seed", U64_MAX), _unsigned(epoch, "epoch"), n, pools)
        return self

    def _begin(self, seed: int, epoch: int, n: int, pools: Any) -> None:
        tree = self._memory = ffi.new("uint32_t[]", max(n, 1))
        _check(lib.pl_sampler_init(self._s, seed, epoch, n, pools, len(tree), tree), "GlobalSampler")

    @classmethod
    def load(cls, state: bytes, simd: str = "best") -> Self:
        """Make a sampler from what save() returned, of either structure."""
        self = cls(simd)
        n, data = ffi.new("uint32_t *"), ffi.from_buffer("uint8_t[]", state)
        _check(lib.pl_sampler_shape(data, len(state), n), "GlobalSampler state")
        self._resume(data, len(state), n[0])
        return self

    def _resume(self, data: Any, size: int, n: int) -> None:
        tree = self._memory = ffi.new("uint32_t[]", max(n, 1))
        _check(lib.pl_sampler_load(self._s, data, size, len(tree), tree), "GlobalSampler state")

    def save(self) -> bytes:
        """Return the state; draws that are neither committed nor void are missing from it."""
        out = ffi.new("uint8_t[]", lib.pl_sampler_size(self._s))
        _check(self._c["save"](self._own, out, len(out)), "GlobalSampler state")
        return bytes(ffi.buffer(out))

    def _client(self, k: int) -> int:
        try:
            if 0 <= k.__index__() < self._s.n:
                return k.__index__()
        except AttributeError:
            pass
        raise CoreError(f"there is no client {k}; this sampler has {self._s.n} of them, counted from 0")

    def _make_room(self, n: int) -> None:
        """Let the buffers of a draw hold n pairs; what they hold is lost."""
        if n > self._room:
            self._room = _unsigned(n, "batch")
            self._ids, self._counts = ffi.new("uint32_t[]", n), ffi.new("uint32_t[]", n)

    def draw(self, batch: int) -> None:
        """Draw the step; `drawn` and `spread` tell what came."""
        self._make_room(batch)
        self._c["draw"](self._own, batch, self._ids, self._counts, self._n_ids)

    def draw_by_client(self, batch: int) -> None:
        """Refuse: this structure has no such draw."""
        raise CoreError("draw_by_client: a Fenwick tree draws sample by sample only; use structure='tree16'")

    def drawn(self) -> tuple[list[int], list[int]]:
        """Return the last draw: clients in increasing order and how many samples of each."""
        n = self._n_ids[0]
        return ffi.unpack(self._ids, n), ffi.unpack(self._counts, n)

    def spread(self, out: Any) -> bool:
        """Write the last draw into a buffer of uint32, one place a client; False when `out` is no such buffer."""
        try:
            view = memoryview(out)
        except TypeError:
            return False
        if view.format != "I" or view.readonly or not view.c_contiguous or view.nbytes != 4 * self._s.n:
            return False
        dense = ffi.from_buffer("uint32_t[]", view, require_writable=True)
        lib.pl_spread(self._n_ids[0], self._ids, self._counts, self._s.n, dense)
        return True

    def commit(self) -> None:
        self._c["commit"](self._own)

    def void(self) -> None:
        """Give the last draw back; the next draw of the step takes other words."""
        _check(self._c["void"](self._own, self._n_ids[0], self._ids, self._counts), "void")

    def skip(self, steps: int, batch: int) -> None:
        """Draw and commit steps without telling what came."""
        self._c["skip"](self._own, _unsigned(steps, "step"), _unsigned(batch, "batch"))

    def steps(self, batch: int, n_larger: int, most: int, by_client: bool = False) -> Steps:
        """Draw and commit up to `most` steps, `batch` samples in those below n_larger, one less from there on."""
        ids, counts, ends = array("I"), array("I"), array("Q")
        while len(ends) < most and self.total:
            (self.draw_by_client if by_client else self.draw)(batch if self.step < n_larger else batch - 1)
            for kept, drawn in zip((ids, counts), self.drawn(), strict=True):
                kept.extend(drawn)
            ends.append(len(ids))
            self.commit()
        return ids, counts, ends

    def count(self, k: int) -> int:
        return int(self._c["count"](self._own, self._client(k)))

    def counts(self) -> array[int]:
        """Return what each client has left."""
        out = array("I", bytes(4 * self._s.n))
        self._c["counts"](self._own, ffi.from_buffer("uint32_t[]", out, require_writable=True))
        return out

    def set_count(self, k: int, count: int) -> None:
        _check(self._c["set_count"](self._own, self._client(k), _unsigned(count, "count")), f"client {k}")

    def add(self, count: int) -> int:
        """Add a client; returns its index."""
        count = _unsigned(count, "count")
        if self._s.n == self._s.room:
            self._grow(min(2 * self._s.room, U32_MAX))
        _check(self._c["add"](self._own, count), "add")
        return int(self._s.n) - 1

    def _grow(self, room: int) -> None:
        tree = ffi.new("uint32_t[]", room)
        ffi.memmove(tree, self._memory, ffi.sizeof(self._memory))
        self._memory, self._s.tree, self._s.room = tree, tree, room

    @property
    def total(self) -> int:
        return int(self._s.total)

    @property
    def n(self) -> int:
        return int(self._s.n)

    @property
    def seed(self) -> int:
        return int(self._s.seed)

    @property
    def epoch(self) -> int:
        return int(self._s.epoch)

    @property
    def step(self) -> int:
        return int(self._s.step)

    @property
    def redraw(self) -> int:
        return int(self._s.redraw)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the structure itself."""
        return int(ffi.sizeof(self._memory))


class EngineHandle(SamplerHandle):
    """The same over a pl_engine, the server's structure."""

    def __init__(self, simd: str = "best") -> None:
        super().__init__()
        if simd not in simd_here():
            raise CoreError(f"simd is {simd!r}; expected one of those that this machine has: {', '.join(simd_here())}")
        self._own = ffi.new("pl_engine *")
        self._s = ffi.addressof(self._own, "at")
        self._simd = simd_here()[simd]
        self._c = _ENGINE

    @property
    def simd(self) -> str:  # type: ignore[override]  # there it is always the same
        """The instructions that are used."""
        return next(name for name, number in SIMD.items() if number == self._own.simd)

    def _take_room(self, n: int) -> int:
        room = max(n, 1)
        self._memory = ffi.new("uint32_t[]", lib.pl_engine_words(room))
        return room

    def _begin(self, seed: int, epoch: int, n: int, pools: Any) -> None:
        room = self._take_room(n)
        status = lib.pl_engine_init(self._own, self._simd, seed, epoch, n, pools, room, self._memory)
        _check(status, "GlobalSampler")

    def _resume(self, data: Any, size: int, n: int) -> None:
        room = self._take_room(n)
        status = lib.pl_engine_load(self._own, self._simd, data, size, room, self._memory)
        _check(status, "GlobalSampler state")

    def _grow(self, room: int) -> None:
        before = self._memory
        self._take_room(room)
        _check(lib.pl_engine_move(self._own, room, self._memory), "add")
        del before

    def draw_by_client(self, batch: int) -> None:
        """Draw the step by one number a client: exact, but outside the contract of one schedule."""
        self._make_room(max(_unsigned(batch, "batch"), self.n))
        lib.pl_engine_draw_by_client(self._own, batch, self._ids, self._counts, self._n_ids)

    def steps(self, batch: int, n_larger: int, most: int, by_client: bool = False) -> Steps:
        _unsigned(batch, "batch")
        widest = max(batch, self.n)  # one step more than will come, for each has its room before it is drawn
        room = min(self.total, most * min(batch, self.n)) + (widest if by_client else batch)
        ids, counts, ends = _zeros("I", room), _zeros("I", room), _zeros("Q", most)
        done = lib.pl_engine_steps(
            self._own, batch, n_larger, by_client, most, room,
            ffi.from_buffer("uint32_t[]", ids, require_writable=True),
            ffi.from_buffer("uint32_t[]", counts, require_writable=True),
            ffi.from_buffer("uint64_t[]", ends, require_writable=True),
        )  # fmt: skip
        pairs = ends[done - 1] if done else 0
        del ids[pairs:], counts[pairs:], ends[done:]
        return ids, counts, ends

    def drain(self, batch: int, by_client: bool = False) -> int:
        """Draw and commit all steps, some ten thousand pairs a call, into memory that is used again; for benchmarks.

        Returns how many samples were drawn.
        """
        room, before = max(16_384, _unsigned(batch, "batch"), self.n if by_client else 0), self.total
        ids, counts, ends = ffi.new("uint32_t[]", room), ffi.new("uint32_t[]", room), ffi.new("uint64_t[]", room)
        while lib.pl_engine_steps(self._own, batch, U32_MAX, by_client, room, room, ids, counts, ends):
            pass
        return before - self.total


def _zeros(code: str, n: int) -> array[int]:
    return array(code, [0]) * n


def near_equal(total: int, batch: int) -> tuple[int, int, int]:
    """Return the least number of steps of at most `batch` samples, the larger size, and how many steps have it."""
    out = ffi.new("uint32_t[3]")
    status = lib.pl_near_equal(_unsigned(total, "total"), _unsigned(batch, "batch"), out, out + 1, out + 2)
    if status != lib.PL_OK:
        raise CoreError(f"batch is {batch}; expected 1 or more")
    return out[0], out[1], out[2]


def hypergeometric(seed: int, n: int, good: int, total: int, sample: int) -> array[int]:
    """Return n numbers of hits among `sample` of `total` samples, `good` of which count."""
    rng, out = Rng(seed, lib.PL_PURPOSE_HYPERGEOMETRIC, 0, 0), array("I", bytes(4 * n))
    if not 0 <= good <= _unsigned(total, "total") or not 0 <= sample <= total:
        raise CoreError(f"good is {good} and sample {sample}; expected whole numbers from 0 to the total, {total}")
    for i in range(n):
        out[i] = lib.pl_hypergeometric(rng._rng, good, total, sample)
    return out


def random_updates(seed: int, n: int, cells: MutableSequence[int], simd: str = "best") -> None:
    """Do n times what no sampler beats: a bounded word and an update of one cell. For benchmarks."""
    where = ffi.from_buffer("uint32_t[]", cells, require_writable=True)
    lib.pl_random_updates(simd_here()[simd], seed, n, len(cells), where)


class LocalHandle:
    """Memory and calls of a pl_local."""

    def __init__(self, n: int, seed: int, epoch: int, client: int) -> None:
        self._l = ffi.new("pl_local *")
        self._index = ffi.new("uint32_t[]", max(_unsigned(n, "samples"), 1))
        seed, epoch = _unsigned(seed, "seed", U64_MAX), _unsigned(epoch, "epoch")
        lib.pl_local_init(self._l, seed, epoch, _unsigned(client, "client"), n, self._index)

    def _left(self, count: int) -> int:
        left = int(self._l.n - self._l.given)
        if _unsigned(count, "count") > left:
            raise CoreError(f"{count} samples are asked for and {left} of {self._l.n} are left in this epoch")
        return count

    def draw(self, count: int) -> list[int]:
        """Return the next samples of the order."""
        out = ffi.new("uint32_t[]", self._left(count))
        lib.pl_local_draw(self._l, count, out)
        return list(ffi.unpack(out, count))

    def skip(self, count: int) -> None:
        lib.pl_local_draw(self._l, self._left(count), ffi.NULL)

    def give_back(self, count: int) -> None:
        if lib.pl_local_give_back(self._l, _unsigned(count, "count")) != lib.PL_OK:
            raise CoreError(f"{count} samples cannot come back; {self._l.given} were drawn")

    @property
    def given(self) -> int:
        return int(self._l.given)


def batch_schedule(shares: Iterable[int], steps: int, minimum: int = 1) -> list[list[int]]:
    """Return steps x ranks batch sizes: each rank's and each step's are the floor or the ceiling of their mean.

    Every rank takes part in every step with at least `minimum` samples (0: may pause). CoreError names the most steps
    that the shares allow.
    """
    places, n = _words(shares, "shares")
    steps = _unsigned(steps, "steps")
    batches, most = ffi.new("uint32_t[]", n * steps), ffi.new("uint32_t *")
    status = lib.pl_schedule(n, places, steps, _unsigned(minimum, "minimum"), batches, most)
    if status == lib.PL_ERR_STEPS:
        raise CoreError(
            f"batch_schedule: the smallest share, {min(places)}, does not give {minimum} a step over {steps} steps; "
            f"these shares allow {most[0]} steps at most"
        )
    if status == lib.PL_ERR_ARGUMENT:
        raise CoreError(f"batch_schedule: expected at least one share and one step, got {n} and {steps}")
    flat = ffi.unpack(batches, n * steps)
    return [flat[start : start + n] for start in range(0, n * steps, n)]


def prepared_schedule(shares: Iterable[int], steps: int) -> Callable[[], None]:
    """Return a call that does nothing but the C core's schedule, in memory that is there; for benchmarks."""
    places, n = _words(shares, "shares")
    batches = ffi.new("uint32_t[]", n * steps)

    def call() -> None:
        lib.pl_schedule(n, places, steps, 1, batches, ffi.NULL)

    return call


# Energy

_ENERGY_FLAGS = {"unknown": lib.PL_ENERGY_UNKNOWN, "gap": lib.PL_ENERGY_GAP, "reset": lib.PL_ENERGY_RESET}


class IntegratorHandle:
    """Memory and calls of a pl_integrator."""

    def __init__(self, period_us: int, knots: int, modulus_uj: int, max_power_uw: int) -> None:
        self._e = ffi.new("pl_integrator *")
        self._knots = ffi.new("pl_knot[]", max(_unsigned(knots, "knots"), 1))
        self._out = ffi.new("pl_energy *")  # of one window after the other
        period_us, modulus_uj = _unsigned(period_us, "period_us"), _unsigned(modulus_uj, "modulus_uj", U64_MAX)
        max_power_uw = _unsigned(max_power_uw, "max_power_uw", lib.PL_POWER_MAX_UW)
        status = lib.pl_integrator_init(self._e, period_us, modulus_uj, max_power_uw, knots, self._knots)
        if status == lib.PL_ERR_ARGUMENT:
            raise CoreError(f"integrator: expected period_us above 0 and at least 4 knots, got {period_us} and {knots}")
        _check(status, "integrator")

    def set_period(self, period_us: int) -> None:
        if _unsigned(period_us, "period_us") == 0:
            raise CoreError("integrator: expected period_us above 0, got 0")
        self._e.period_us = period_us

    def interval(self, t0_us: int, t1_us: int, power_uw: int, error_uw: int) -> None:
        _check(lib.pl_integrator_interval(self._e, t0_us, t1_us, power_uw, error_uw), "interval reading")

    def point(self, t_us: int, power_uw: int, error_uw: int) -> None:
        _check(lib.pl_integrator_point(self._e, t_us, power_uw, error_uw), "point reading")

    def counter(self, t_us: int, count_uj: int) -> None:
        _check(lib.pl_integrator_counter(self._e, t_us, count_uj), "counter reading")

    def span_us(self) -> tuple[int, int] | None:
        """Return the instants of the oldest knot that is kept and of the newest, None before the first reading."""
        if self._e.count == 0:
            return None
        last = (self._e.first + self._e.count - 1) % self._e.n_knots
        return int(self._knots[self._e.first].t_us), int(self._knots[last].t_us)

    def window(self, t0_us: int, t1_us: int) -> tuple[int, int, int, int, tuple[str, ...]] | None:
        """Return energy_uj, covered_us, bound_uj, edge_uj and flags by name; None: not final.

        LookupError: it begins before what is kept.
        """
        out = self._out
        status = lib.pl_integrator_window(self._e, t0_us, t1_us, out)
        if status == lib.PL_ERR_NOT_FINAL:
            return None
        if status == lib.PL_ERR_FORGOTTEN:
            oldest, newest = self.span_us() or (0, 0)
            raise LookupError(
                f"the window begins at {t0_us} us, but readings are kept from {oldest} to {newest} us only; "
                "ask earlier, or give the integrator more knots"
            )
        _check(status, "window (its end must not lie before its start)")
        flags = tuple(name for name, bit in _ENERGY_FLAGS.items() if out.flags & bit) if out.flags else ()
        return int(out.energy_uj), int(out.covered_us), int(out.bound_uj), int(out.edge_uj), flags


# Sensors

_RAIL_FLAGS = {
    "ready": lib.PL_RAIL_READY,
    "overflow": lib.PL_RAIL_OVERFLOW,
    "saturated": lib.PL_RAIL_SATURATED,
}


def _wire(register: bytes, name: str) -> bytes:
    if len(register) != 2:
        raise CoreError(f"{name} holds {len(register)} bytes; a register has 2")
    return register


def _rail(out: Any, status: int, where: str) -> tuple[int, int, int, int, tuple[str, ...]]:
    if status == lib.PL_ERR_ARGUMENT:
        raise CoreError(f"{where}: a shunt has at least 1 microohm")
    flags = tuple(name for name, bit in _RAIL_FLAGS.items() if out.flags & bit)
    return int(out.shunt_uv), int(out.bus_mv), int(out.current_ua), int(out.power_uw), flags


def ina219(config: int, shunt: bytes, bus: bytes, shunt_uohm: int) -> tuple[int, int, int, int, tuple[str, ...]]:
    """Return shunt_uv, bus_mv, current_ua, power_uw and flags by name of registers 01 and 02, high byte first."""
    out, shunt_uohm = ffi.new("pl_rail *"), _unsigned(shunt_uohm, "shunt_uohm")
    return _rail(out, lib.pl_ina219(config, _wire(shunt, "shunt"), _wire(bus, "bus"), shunt_uohm, out), "ina219")


def ina3221(shunt: bytes, bus: bytes, shunt_uohm: int) -> tuple[int, int, int, int, tuple[str, ...]]:
    """Return shunt_uv, bus_mv, current_ua, power_uw and flags by name of a channel's registers, high byte first."""
    out, shunt_uohm = ffi.new("pl_rail *"), _unsigned(shunt_uohm, "shunt_uohm")
    return _rail(out, lib.pl_ina3221(_wire(shunt, "shunt"), _wire(bus, "bus"), shunt_uohm, out), "ina3221")

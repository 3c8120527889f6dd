# SPDX-License-Identifier: Apache-2.0
"""What each kind of fault does to a world, and how all of it ends."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from paceline_host.simulation.chaos.board import ChaosBoard
from paceline_host.simulation.chaos.plan import HOSTILE
from paceline_host.simulation.chaos.wire import DOWN, UP, Bytes
from paceline_host.simulation.host import COMMIT_S

if TYPE_CHECKING:
    from paceline_host.simulation.chaos.world import World

POINTS = 60  # a host that is to die does so within so many points
MESSAGES = 12  # a connection that is to end does so within fewer
AGAIN_S = 15.0  # within which what has ended is started again
WHILE_S = 20.0  # that something lasts at most: two patiences and a half
LONG_AGO_NS = 86_400 * 10**9
FAR_AHEAD_NS = 4_000_000_000 * 10**9


def _cut(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    return _ended(board, chance, known=True)


def _half_open(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    return _ended(board, chance, known=False)


def _ended(board: ChaosBoard, chance: Random, *, known: bool) -> str:
    after = chance.randrange(MESSAGES)
    board.wire.cut(known=known, after=after)
    return f"{board.name}, in the midst of {after} messages" if after else board.name


def _partition(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    seconds = chance.uniform(0.5, WHILE_S)
    board.wire.block((UP, DOWN), seconds)
    return f"{board.name} for {seconds:.1f} s"


def _one_way(world: World, chance: Random) -> str:
    board, way = chance.choice(world.boards), chance.choice((UP, DOWN))
    seconds = chance.uniform(0.5, WHILE_S)
    board.wire.block((way,), seconds)
    return f"{board.name} {way} for {seconds:.1f} s"


def _slow_link(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.wire.slow = 20.0
    _later(world, chance, lambda: setattr(board.wire, "slow", 1.0))
    return board.name


def _kill_board(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.end()
    _start_again(world, chance, board)
    return board.name


def _power_board(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.lose_power()
    _start_again(world, chance, board)
    return board.name


def _leave_board(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.leave("it leaves")
    _start_again(world, chance, board)
    return board.name


def _freeze_board(world: World, chance: Random) -> str:
    board, seconds = chance.choice(world.boards), chance.uniform(0.2, WHILE_S)
    board.freeze(seconds)
    return f"{board.name} for {seconds:.1f} s"


def _kill_trainer(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.lose_trainer()
    return board.name


def _hang_trainer(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.hang_trainer()
    return board.name if board.hangs else ""


def _slow_board(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.change(lambda model: setattr(model, "slow", 5.0))
    _later(world, chance, lambda: board.change(lambda model: setattr(model, "slow", 1.0)))
    return board.name


def _meter_dies(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.change(lambda model: setattr(model, "metered", False))
    _later(world, chance, lambda: board.change(lambda model: setattr(model, "metered", True)))
    return board.name


def _meter_absurd(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.absurd = True
    _later(world, chance, lambda: setattr(board, "absurd", False))
    return board.name


def _full_board(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.disk_full = True
    _later(world, chance, lambda: setattr(board, "disk_full", False))
    return board.name


def _memory(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    board.flips = True
    return board.name


def _kill_host(world: World, chance: Random) -> str:
    return _doom(world, chance, power=False)


def _power_host(world: World, chance: Random) -> str:
    return _doom(world, chance, power=True)


def _doom(world: World, chance: Random, *, power: bool) -> str:
    if world.doom.left is not None:
        return ""
    world.doom.left, world.doom.power = chance.randint(1, POINTS), power
    return f"after {world.doom.left} points"


def _freeze_host(world: World, chance: Random) -> str:
    if world.host is None:
        return ""
    seconds = chance.uniform(0.2, WHILE_S)
    world.host.freeze(seconds)
    return f"for {seconds:.1f} s"


def _slow_disk(world: World, chance: Random) -> str:
    if world.host is None:
        return ""
    host, host.commit_s = world.host, chance.uniform(0.05, 3.0)
    _later(world, chance, lambda: setattr(host, "commit_s", COMMIT_S))
    return f"commits take {host.commit_s:.2f} s"


def _full_disk(world: World, chance: Random) -> str:
    world.disk.is_full = True
    _later(world, chance, lambda: setattr(world.disk, "is_full", False))
    return "no room"


def _sync_fails(world: World, chance: Random) -> str:
    world.disk.sync_fails = True
    return "the next one"


def _clock_jump(world: World, chance: Random) -> str:
    world.disk.wall_ns = chance.choice((LONG_AGO_NS, FAR_AHEAD_NS, world.disk.wall_ns - 3600 * 10**9))
    _doom(world, chance, power=False)
    return f"it is {world.disk.wall_ns // 10**9} s after 1970"


def _apart(world: World, chance: Random) -> str:
    board, seconds = chance.choice(world.boards), chance.uniform(0.5, WHILE_S)
    board.apart_s = world.clock.now_s + seconds
    return f"{board.name} for {seconds:.1f} s"


def _group_breaks(world: World, chance: Random) -> str:
    board = chance.choice(world.boards)
    return board.name if board.lose_peers() else ""


HAPPENS: dict[str, Callable[[World, Random], str]] = {
    "cut": _cut, "half-open": _half_open, "partition": _partition, "one-way": _one_way, "slow-link": _slow_link,
    "kill-board": _kill_board, "power-board": _power_board, "leave-board": _leave_board,
    "freeze-board": _freeze_board, "kill-trainer": _kill_trainer, "hang-trainer": _hang_trainer,
    "slow-board": _slow_board, "meter-dies": _meter_dies, "meter-absurd": _meter_absurd, "full-board": _full_board,
    "memory": _memory, "kill-host": _kill_host, "power-host": _power_host, "freeze-host": _freeze_host,
    "slow-disk": _slow_disk, "full-disk": _full_disk, "sync-fails": _sync_fails, "clock-jump": _clock_jump,
    "apart": _apart, "group-breaks": _group_breaks,
}  # fmt: skip


def _later(world: World, chance: Random, call: Callable[[], None]) -> None:
    world.clock.later(chance.uniform(1.0, WHILE_S), call)


def _start_again(world: World, chance: Random, board: ChaosBoard) -> None:
    world.clock.later(chance.uniform(0.2, AGAIN_S), lambda: None if board.alive else board.start())


def heal(world: World) -> None:
    """End what lasts: everybody is there, everything works."""
    for board in world.boards:
        board.wire.heal()
        board.apart_s = 0.0
        board.disk_full = board.absurd = board.lies = board.flips = False
        board.change(lambda model: setattr(model, "slow", 1.0))
        board.change(lambda model: setattr(model, "metered", True))
        board.thaw()
        if board.hangs:  # else its end is that of its lease, which may be long
            board.lose_trainer()
        if not board.alive:
            board.start()
    if world.host is not None:
        world.host.commit_s = COMMIT_S
        world.host.thaw()


def make_hostile(world: World, board: ChaosBoard) -> None:
    """Let a board do with its own messages what CURVE over TCP does not."""
    kinds = [kind for kind in world.plan.kinds if kind in HOSTILE]
    chance = Random(f"hostile {world.plan.seed}")
    honest, wire = board.say, board.wire
    board.lies = "lie" in kinds

    def say(header: bytes, payload: Bytes) -> None:
        kind = chance.choice(kinds) if kinds else ""
        if world.healed or not kind or chance.random() > 0.2:
            honest(header, payload)
            return
        world.verdict.faults[kind] += 1
        if kind == "repeat":
            honest(header, payload)
            wire.inject(header, payload, chance.choice((0.0, 0.5, chance.uniform(0.0, 30.0))))
        elif kind == "reorder":
            wire.inject(header, payload, chance.uniform(0.0, 2.0))
        elif kind == "corrupt":
            honest(*_flipped(header, payload, chance))
        elif kind == "lie":
            honest(header, payload)

    board.say = say


def _flipped(header: bytes, payload: Bytes, chance: Random) -> tuple[bytes, Bytes]:
    header, body = bytes(header), bytes(payload)
    if body and chance.random() < 0.5:
        return header, _flip(body, chance)
    return _flip(header, chance), body


def _flip(data: bytes, chance: Random) -> bytes:
    flipped = bytearray(data)
    flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
    return bytes(flipped)

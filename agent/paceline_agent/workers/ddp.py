# SPDX-License-Identifier: Apache-2.0
"""One rank of synchronised training on a board: joins the group that the host describes, steps with it, tells of it.

The host calls; the rank says where it is, the first rank opens the group's store, all step. Whatever ends the group
early (a rank that is lost, one that is stuck, a new call) leaves the rank at the last step that it has done, waiting to
be called again.
"""

from __future__ import annotations

import json
import struct
import time
import traceback
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from paceline.core import permutation
from paceline.errors import SettingsError
from paceline.settings import Bounds, load_table
from paceline.tasks import Task
from paceline.tasks.modules import Trainable
from paceline.uneven import Deal
from paceline_agent.channel import Input, Work
from paceline_agent.workers import StepClock
from paceline_agent.workers.group import Broken, Group, address_for, address_towards, need_consent
from paceline_agent.workers.psl import BACKWARD, FORWARD

FIGURES = struct.Struct("<dI")  # drift found at the last broadcast, steps; then 3 numbers a step, microseconds
TEXT_BYTES = 1 << 16  # of what the host says


@dataclass(frozen=True)
class RankSettings:
    """What LOAD says of the regime."""

    steps: Annotated[int, Bounds(ge=1, le=20_000)]
    minimum: Annotated[int, Bounds(ge=0)]
    patience_s: Annotated[float, Bounds(gt=0)]
    plain: bool  # collectives may travel in plain text off loopback
    backend: Literal["gloo", "nccl"]


class DdpWorker:
    """See paceline_agent.workers.Worker."""

    def __init__(self, task: Task, options: Mapping[str, object]) -> None:
        self._settings = load_table(options, RankSettings, where="ddp")
        self._task = task
        self._trainable = Trainable(task, device_of(self._settings.backend))
        self.samples = task.samples
        self.model_bytes = self._trainable.state_bytes
        self.inbox_bytes = self.model_bytes + TEXT_BYTES
        self.outbox_bytes = max(self.model_bytes, TEXT_BYTES, FIGURES.size + 12 * self._settings.steps)
        self.update_bytes = 0
        self._holds = False  # the memory is a state of the present lease
        self._order: tuple[int, Any] = (-1, None)
        self._since_s = 0.0  # when the last exchange was over
        self._apart_s: float | None = None  # from then until this rank entered the present one; None: it has not

    def warm_up(self, batch: int) -> None:
        self._trainable.initial_state()
        x, y = self._trainable.batch(self._some(min(batch, self.samples)), 0)
        loss = self._trainable.loss(self._trainable.flat.module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub

    def work(self, work: Work, model: memoryview, update: memoryview, clock: StepClock) -> memoryview | bytearray:
        self.update_bytes = 0
        self._steps, self._figures, self._drift, self._holds = 0, array("I"), 0.0, False
        self._seed, self._clock, self._update = work.plan_seed, clock, update
        self._group: Group | None = None
        self._since_s, self._apart_s = 0.0, None
        loaded = False
        try:
            while True:
                given = clock.receive()
                data = bytes(model[given.offset : given.offset + given.size])
                if given.what == "call":
                    self._leave()
                    if not loaded and data == b"L":
                        self._trainable.load_state(model[: self.model_bytes])
                        self._holds = True
                    loaded = True
                    self._say_here(given)
                elif given.what == "schedule":
                    self._take_part(given, json.loads(data))
                elif given.what == "give":
                    state = self._trainable.state()
                    update[: len(state)] = state
                    self.update_bytes = len(state)
                    return update[: len(state)]
                elif given.what == "close":
                    return self._trainable.state()
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # as `Group.close` wants it
            raise
        finally:
            self._leave()

    def _put(self, given: Input, what: str, data: bytes) -> None:
        self._update[: len(data)] = data
        self._clock.put_out(self._steps, given.redraw, what, len(data))

    def _say(self, given: Input, what: str, **facts: object) -> None:
        self._put(given, what, json.dumps(facts).encode()[:TEXT_BYTES])

    def _say_here(self, given: Input) -> None:
        self._say(
            given, "here", steps=self._steps, state=self._holds, torch=torch.__version__.partition("+")[0],
            dtype=self._trainable.precision, address=address_towards(self._clock.host),
            apart_s=self._apart_s,
        )  # fmt: skip

    def _leave(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    # A group --------------------------------------------------------------------------------------------------------

    def _take_part(self, given: Input, plan: Mapping[str, Any]) -> None:
        broken: dict[str, object] = {}
        done = False
        try:
            if not plan["stays"]:
                self._join(given, plan)
            done = self._train(plan)
        except Broken as error:
            broken = {"kind": error.kind, "reason": str(error), "blamed": error.blamed}
        if broken:  # the error and its frames are gone, as `Group.close` wants it
            self._leave()
            self._say(given, "broken", steps=self._steps, **broken)
        elif done:
            head = FIGURES.pack(self._drift, self._steps)
            self._put(given, "done", head + self._figures.tobytes())

    def _join(self, given: Input, plan: Mapping[str, Any]) -> None:
        """Form the group; the first rank's state becomes everybody's."""
        address = address_for(len(plan["names"]), plan["toward"] or self._clock.host)
        need_consent(address, self._settings.plain)
        trainable, self._apart_s = self._trainable, 0.0  # to form the group is one exchange after the other
        group = self._group = Group(
            plan["rank"], plan["names"], address, self._settings.patience_s, self._settings.backend
        )
        if plan["rank"] == 0:
            self._say(given, "store", address=address, port=group.open())
        else:
            group.find(plan["address"], plan["port"])
        facts = {"model": self._task.manifest.digest(), "torch": torch.__version__.partition("+")[0],
                 "dtype": trainable.precision}  # fmt: skip
        group.meet(facts)
        theirs = group.share(bytes(trainable.state()))
        if plan["rank"] and plan["check"]:
            self._drift = max(self._drift, drift(trainable, theirs))
        trainable.load_state(theirs)
        self._holds = True
        self._steps = plan["first"]
        del self._figures[3 * self._steps :]
        group.wrap(trainable.flat.module, trainable.loss)
        self._since_s = time.monotonic()

    def _train(self, plan: Mapping[str, Any]) -> bool:
        """Step as far as the plan reaches; False: the host has something to say."""
        first, rank = plan["first"], plan["rank"]
        deal = Deal(plan["shares"], plan["steps"], self._settings.minimum)
        for step in range(plan["stretch"]):
            if self._clock.look():
                return False
            own, total = deal.counts(step, rank)
            places = deal.places(step, rank)
            self._step(plan["place"] + places.start, own, total)
            self._steps = first + step + 1
        return True

    def _step(self, place: int, own: int, total: int) -> None:
        trainable, group, clock = self._trainable, self._group, self._clock
        assert group is not None
        x, y = self._batch(place, own)
        trainable.flat.gradient.zero_()

        def after_backward() -> None:
            clock.finish(own, BACKWARD)
            clock.wait()
            self._apart_s = time.monotonic() - self._since_s

        self._apart_s = None
        clock.begin()
        times = group.step(x, y, own, total, lambda: clock.pause(own, FORWARD), after_backward)
        self._since_s = time.monotonic()
        trainable.optimiser.step(trainable.flat.gradient)
        self._figures.extend(min(round(seconds * 1e6), (1 << 32) - 1) for seconds in times)

    def _batch(self, place: int, own: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the samples at these places of the stream."""
        parts = []
        while True:
            epoch, position = divmod(place, self.samples)
            length = min(own, self.samples - position)
            if self._order[0] != epoch:
                self._order = epoch, self._order_of(epoch)
            parts.append(self._trainable.batch(self._order[1][position : position + length], epoch))
            place, own = place + length, own - length
            if not own:
                break
        xs, ys = zip(*parts, strict=True)
        return (xs[0], ys[0]) if len(parts) == 1 else (torch.cat(xs), torch.cat(ys))

    def _some(self, count: int) -> Sequence[int]:
        """Return the numbers of so many samples, whichever."""
        return range(count)

    def _order_of(self, epoch: int) -> Sequence[int]:
        """Return the numbers of the samples in the order in which an epoch goes through them."""
        return permutation(self._seed, epoch, self.samples)


def drift(trainable: Trainable, theirs: bytes) -> float:
    """Return the largest difference of a weight from those of another state."""
    weights = trainable.flat.weights
    size = weights.numel() * weights.element_size()
    other = torch.frombuffer(bytearray(theirs[:size]), dtype=weights.dtype)
    return float((weights - other.to(weights.device)).abs().max())


def device_of(backend: str) -> str:
    """Return where a backend wants the tensors. Raises SettingsError on a board that has no such device."""
    if backend == "gloo":
        return "cpu"
    if not torch.cuda.is_available():
        raise SettingsError(
            [f'run.backend = "{backend}": torch {torch.__version__} finds no CUDA GPU on this board; expected "gloo", '
             "or boards with a GPU and a CUDA build of torch each"]
        )  # fmt: skip
    return "cuda"

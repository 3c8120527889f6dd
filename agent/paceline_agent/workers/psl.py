# SPDX-License-Identifier: Apache-2.0
"""Parallel split learning on a board: the client part of the model, over the samples of this board's clients.

Each step: take the client part, put out smashed data and labels; take their gradient, put out that of the client part.
Clients that share a board are computed as one batch, in their order; each draws from its own samples, in its own order.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

from paceline.errors import RemoteProtocolError
from paceline.local_draw import LocalDraw
from paceline.settings import load_table
from paceline.split.clients import OWN, ClientSettings, sizes_of
from paceline.split.layout import gradient_manifest, upload_manifest
from paceline.split.rows import Rows, room
from paceline.tasks import Task, splittable
from paceline_agent.channel import Input, Work
from paceline_agent.workers import StepClock

FORWARD, BACKWARD = 1 / 3, 2 / 3  # of a step's declared pace: going back costs twice as much as going forward


class PslWorker:
    """See paceline_agent.workers.Worker."""

    update_bytes = 0  # the host owns the model

    def __init__(self, task: Task, options: Mapping[str, object]) -> None:
        self._task = splittable(task)
        settings = load_table(options, ClientSettings, where="split")
        self._dtype, self._seed = settings.smashed, settings.seed
        self._clients = range(settings.first, settings.first + settings.count)
        members = settings.members(self._task)
        own = settings.partition == OWN
        self._members = members if own else members[settings.first : settings.first + settings.count]
        self._sizes = sizes_of(self._members)
        self.samples = sum(self._sizes)
        self.model_bytes = task.manifest.nbytes
        most, part = max(1, settings.largest), self._task.client_manifest.nbytes
        inputs = max(part, gradient_manifest(self._task, most, self._dtype).nbytes)
        self.inbox_bytes = room(settings.count) + inputs
        self.outbox_bytes = max(part, upload_manifest(self._task, most, self._dtype).nbytes)
        self._client: Any = None

    def warm_up(self, batch: int) -> None:
        from paceline.split.client import SplitClient  # torch comes in here, for boards that hold clients

        if not self.samples:
            return
        self._client = SplitClient(self._task, self._dtype)
        first = [int(i) for i in self._members[self._sizes.index(max(self._sizes))][:batch]]
        self._client.load(memoryview(self._task.initial())[: self._task.client_manifest.nbytes])
        self._client.forward(0, first, 0)
        layout = gradient_manifest(self._task, len(first), self._dtype)
        nothing = bytearray(layout.nbytes)
        layout.view(nothing, layout["scale"])[:] = struct.pack("=f", 1.0)
        self._client.backward(0, nothing)  # the first way back costs as much as a hundred others

    def work(self, work: Work, model: memoryview, update: memoryview, clock: StepClock) -> bytes:
        epoch = work.ranges[0][0]
        orders = [
            LocalDraw(size, self._seed, epoch, client).draw(size)
            for client, size in zip(self._clients, self._sizes, strict=True)
        ]
        rows, opened, overtaken = None, (-1, -1), False
        self._client.forget()
        while True:
            given = clock.receive()
            data = bytearray(model[given.offset : given.offset + given.size])
            if zlib.crc32(data) != given.crc32:  # a newer one lies there: its step is void, another schedule is coming
                rows, overtaken = None, True
            elif given.what == "schedule":
                rows = Rows.decode(bytes(data), self._sizes)
            elif rows is None and overtaken:
                continue  # of a void step as well
            elif rows is None:
                raise RemoteProtocolError(f"{given.what} of step {given.step} before any schedule")
            elif given.what == "model" and given.step >= rows.epoch_steps:
                return bytes(data)
            elif given.what == "model":
                self._forward(given, rows, orders, epoch, data, update, clock)
                opened = given.step, given.redraw
            elif (given.step, given.redraw) == opened:  # else its step was void meanwhile
                self._backward(given, rows, data, update, clock)

    def _forward(
        self, given: Input, rows: Rows, orders: list[Any], epoch: int, part: bytearray, update: memoryview,
        clock: StepClock,
    ) -> None:  # fmt: skip
        spans = rows.positions(given.step)
        indices = [
            int(members[order[place]])
            for members, order, (begin, end) in zip(self._members, orders, spans, strict=True)
            for place in range(begin, end)
        ]
        self._count = len(indices)
        clock.begin()
        self._client.forget()
        self._client.load(part)
        upload = self._client.forward(0, indices, epoch)
        clock.pause(self._count, FORWARD)
        clock.end()
        update[: len(upload)] = upload
        clock.put_out(given.step, given.redraw, "smashed", len(upload))

    def _backward(self, given: Input, rows: Rows, gradient: bytearray, update: memoryview, clock: StepClock) -> None:
        clock.begin()
        sums = self._client.backward(0, gradient)
        clock.finish(self._count, BACKWARD)
        clock.end()
        update[: len(sums)] = sums
        clock.put_out(given.step, given.redraw, "update", len(sums))

# SPDX-License-Identifier: Apache-2.0
"""What an operator can ask of a host daemon, as calls with a deadline each; errors are the sentences of the host."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from paceline.errors import LinkError, PacelineError, RemoteProtocolError
from paceline_host import operator_wire as w
from paceline_host.host_config import OperatorConfig
from paceline_host.operator_link import OperatorLink

ANSWER_S = 15.0  # to what the desk knows; while a run is watched, its silence
SUBMIT_S = 120.0  # the host reads the experiment's data set, and the first time torch
M = TypeVar("M", bound=w.Message)


class RefusedByHost(PacelineError):
    """The host does not do it, and says why."""

    def __init__(self, refusal: w.Refused) -> None:
        errors = refusal.document.get("errors", [])
        super().__init__("\n".join(str(error) for error in errors) or "the host refused it without a word")
        self.exit_code = refusal.exit_code if 0 < refusal.exit_code < 128 else 1


class Operator:
    """A connection to a host daemon. Its calls raise RefusedByHost, and LinkError when no answer comes."""

    def __init__(self, link: OperatorLink, endpoint: str, answer_s: float = ANSWER_S) -> None:
        self._link, self._endpoint, self._answer_s = link, endpoint, answer_s
        self._numbers = itertools.count(1)

    def submit(self, name: str, experiment: str, overrides: Sequence[str]) -> w.Queued:
        """Queue an experiment, the text of a TOML file."""
        document = {"experiment": experiment, "set": list(overrides)}
        return self._ask(w.Submit(next(self._numbers), w.PROTOCOL, name, document=document), w.Queued, SUBMIT_S)

    def status(self) -> w.Document:
        """Return the document of `paceline status`."""
        return self._ask(w.Status(next(self._numbers), w.PROTOCOL), w.Told).document

    def runs(self) -> w.Document:
        """Return the document of `paceline runs`."""
        return self._ask(w.Runs(next(self._numbers), w.PROTOCOL), w.Told).document

    def stop(self, ticket: str) -> w.Stopping:
        """End a ticket's runs in order, or take it from the queue; empty: the active one."""
        return self._ask(w.Stop(next(self._numbers), w.PROTOCOL, ticket), w.Stopping)

    def resume(self, ticket: str) -> w.Queued:
        """Queue a ticket again that was stopped or has failed."""
        return self._ask(w.Resume(next(self._numbers), w.PROTOCOL, ticket), w.Queued)

    def divide(self, name: str, number: int, document: w.Document) -> w.Document:
        """Return the shares of a round of a script's ranks."""
        return self._ask(w.Divide(next(self._numbers), w.PROTOCOL, name, number, document=document), w.Told).document

    def watch(self, ticket: str) -> Generator[w.News | w.Ended, None, None]:
        """Yield how a ticket goes, at last its end; closing this ends the watch. Empty: the active or next one."""
        return self._news(w.Watch(next(self._numbers), w.PROTOCOL, ticket))

    def drain(self) -> Generator[w.News | w.Ended, None, None]:
        """Drain the host; yield signs of life, at last its end; closing this ends the watch and not the draining."""
        return self._news(w.Drain(next(self._numbers), w.PROTOCOL))

    def _news(self, asked: w.Message) -> Generator[w.News | w.Ended, None, None]:
        number = asked.request
        message: w.Message = self._ask(asked, w.Message)
        try:
            while isinstance(message, w.News | w.Ended):
                yield message
                if isinstance(message, w.Ended):
                    return
                message = self._answer(number, w.Message, self._answer_s)
        finally:
            if not isinstance(message, w.Ended):
                with suppress(LinkError):
                    self._link.send(*w.encode(w.Unwatch(number, w.PROTOCOL)))

    def _ask(self, message: w.Message, kind: type[M], wait_s: float | None = None) -> M:
        self._link.send(*w.encode(message))
        return self._answer(message.request, kind, self._answer_s if wait_s is None else wait_s)

    def _answer(self, request: int, kind: type[M], wait_s: float) -> M:
        end_s = time.monotonic() + wait_s
        while (frames := self._link.receive(max(0.0, end_s - time.monotonic()))) is not None:
            try:
                message = w.decode(*frames, w.TO_OPERATOR)
            except RemoteProtocolError as error:
                raise LinkError(f"{self._endpoint} does not speak this version's protocol: {error}") from None
            if message.request != request:
                continue  # of a watch that was left
            if isinstance(message, w.Refused):
                raise RefusedByHost(message)
            if isinstance(message, kind):
                return message
        raise LinkError(f"the host at {self._endpoint} has not answered for {wait_s:g} s")


@contextmanager
def connected(config: OperatorConfig) -> Iterator[Operator]:
    """Connect for as long as the context lasts. Raises PacelineError."""
    keys, host_key = config.read_keys()
    link = OperatorLink(config.endpoint, host_key, keys)
    try:
        yield Operator(link, config.endpoint)
    finally:
        link.close()

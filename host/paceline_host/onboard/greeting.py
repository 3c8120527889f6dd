# SPDX-License-Identifier: Apache-2.0
"""Whether an agent that was just started has greeted the host: a daemon is asked, else this listens for a while itself.

`admit` must come before the agent is started: one whose key is not known is refused, and ends.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from paceline.errors import LinkError, RemoteProtocolError
from paceline.keys import KeyPair, read_boards
from paceline.wire import Hello, decode
from paceline_host.host_config import OperatorConfig
from paceline_host.link import HostLink
from paceline_host.operator_calls import connected

HELLO_S = 60.0  # an agent reconnects within half a minute at most
TURN_S = 0.1


class Greeting(Protocol):
    """Several threads may call these. `hurries`: agents are to be started anew, or one that runs is heard of late."""

    hurries: bool

    def admit(self, name: str, public: str) -> None:
        """Return once the host knows the board's key. Raises PacelineError."""

    def wait(self, name: str, wait_s: float = HELLO_S) -> bool:
        """Wait until the board has greeted the host; False: not in time."""

    def close(self) -> None:
        """Listen no longer."""


class OfDaemon:
    """Asks a host daemon, which watches its key folders by itself."""

    hurries = False

    def __init__(self, config: OperatorConfig) -> None:
        """Raises PacelineError when no daemon answers."""
        self._config = config
        with connected(config) as host:
            host.status()

    def admit(self, name: str, public: str) -> None:
        if not comes_to(self._config, name, lambda state: state != ""):
            raise LinkError(f"the host daemon does not take the key of {name}: does it watch the same keys folder?")

    def wait(self, name: str, wait_s: float = HELLO_S) -> bool:
        return comes_to(self._config, name, lambda state: state == "connected", wait_s)

    def close(self) -> None:
        """Nothing is held."""


def comes_to(config: OperatorConfig, name: str, fits: Callable[[str], bool], wait_s: float = HELLO_S) -> bool:
    """Wait until a daemon's word for a board fits, "" being that it knows none; False: not in time."""
    end_s = time.monotonic() + wait_s
    with connected(config) as host:
        while time.monotonic() < end_s:
            states = {row["name"]: row["state"] for row in host.status()["boards"]}
            if fits(states.get(name, "")):
                return True
            time.sleep(TURN_S)
    return False


class OfOwn:
    """Listens where the host will; answers nobody, so agents go on greeting until a host does."""

    hurries = True

    def __init__(self, listen: str, keys: KeyPair, boards: Path) -> None:
        """Raises LinkError when it cannot listen there, KeyFileError when the keys are not in order."""
        self._listen, self._keys = listen, keys
        self._known = read_boards(boards, [])
        self._heard: set[str] = set()
        self._changed = threading.Condition()
        self._asked: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._failed: list[LinkError] = []
        self._thread = threading.Thread(target=self._run, name="greeting")
        self._admitted: set[str] = set()
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait()
        for error in self._failed:
            self._thread.join()
            raise error

    def admit(self, name: str, public: str) -> None:
        with self._changed:
            self._heard.discard(name)
            self._admitted.discard(name)
        self._asked.put((name, public))
        self._is_in(self._admitted, name)

    def wait(self, name: str, wait_s: float = HELLO_S) -> bool:
        return self._is_in(self._heard, name, wait_s)

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join()

    def _is_in(self, names: set[str], name: str, wait_s: float = HELLO_S) -> bool:
        """Wait until a name is in a set; False: not in time."""
        end_s = time.monotonic() + wait_s
        with self._changed:
            while name not in names and (left_s := end_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            return name in names

    def _run(self) -> None:
        """Make the link and use it: one thread does both."""
        try:
            link = HostLink(self._listen, self._keys, self._known, lambda text: None)
        except LinkError as error:
            self._failed.append(LinkError(f"{error}, or, where a host daemon listens there, name it with --host"))
            return
        finally:
            self._ready.set()
        try:
            while True:
                link.poll(TURN_S)
                for arrival in link.receive():
                    with suppress(RemoteProtocolError), self._changed:
                        decode(arrival.header, (Hello,))
                        self._heard.add(arrival.board)
                        self._changed.notify_all()
                with suppress(queue.Empty):
                    asked = self._asked.get_nowait()
                    if asked is None:
                        return
                    self._known[asked[0]] = asked[1]
                    link.admit(self._known, {})
                    with self._changed:
                        self._admitted.add(asked[0])
                        self._changed.notify_all()
        finally:
            link.close()

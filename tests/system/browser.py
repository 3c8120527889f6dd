# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through its own pipe: opens one file, measures, photographs. It reaches no network."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """One page. `events` are those that came meanwhile, oldest first."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._pending = commands, answers, b""
        self._number, self._session = 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, width: int, *, height: int = 800, features: Mapping[str, str] | None = None) -> None:
        """Show a file at a width in CSS pixels, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        wanted = [{"name": name, "value": value} for name, value in (features or {}).items()]
        self.call("Emulation.setEmulatedMedia", features=wanted)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._take()

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page, which must be data."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def photograph(self, path: Path) -> Path:
        """Write the whole page as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def print(self) -> bytes:
        """Return the page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def complaints(self) -> list[str]:
        """Return what went to the console or was thrown since the page was opened."""
        self.value("0")  # what was said before this answer has come by now
        kinds = {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}
        return [json.dumps(event["params"]) for event in self.events if event["method"] in kinds]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the page was opened."""
        self.value("0")
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Send one command and return its answer."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._take()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _take(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            got = os.read(self._answers, 1 << 20)
            assert got, "Chromium has ended"
            self._pending += got
        text, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message


@contextmanager
def chromium(program: Path, profile: Path) -> Iterator[Page]:
    """Start Chromium with a new profile folder; yield its page; end it."""
    their_commands, commands = os.pipe()
    answers, their_answers = os.pipe()
    # Chromium reads commands from descriptor 3 and answers on 4; the shell puts them there and becomes Chromium.
    onto = f'exec "$@" 3<&{their_commands} 4>&{their_answers}'
    arguments = ["/bin/bash", "-c", onto, "bash", str(program), *FLAGS, f"--user-data-dir={profile}"]
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            arguments, pass_fds=(their_commands, their_answers), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        os.close(their_commands)
        os.close(their_answers)
        try:
            yield Page(commands, answers)
        finally:
            process.terminate()
            process.wait(20)
            os.close(commands)
            os.close(answers)

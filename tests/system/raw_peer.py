# SPDX-License-Identifier: Apache-2.0
"""A peer that holds a board's key and may say anything: the protocol by hand, over a socket of its own."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from pathlib import Path
from typing import TypeVar

import msgpack
import zmq

from paceline import wire
from paceline.keys import read_pair, read_public
from paceline.tasks import make

WAIT_S = 20.0
M = TypeVar("M", bound=wire.Message)


class RawPeer:
    """Connects to a host as `board`, with the keys of a bench's folder. `session` is its nonce."""

    def __init__(self, folder: Path, board: str, endpoint: str) -> None:
        keys = read_pair(folder / board / f"{board}.key")
        self.session = secrets.randbits(63) or 1
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.curve_serverkey = read_public(folder / "keys" / "host.pub").encode()
        self._socket.curve_publickey, self._socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        self._watch = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(endpoint)

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def send(self, message: wire.Message, payload: bytes = b"") -> None:
        """Send a message as the protocol wants it."""
        self.send_frames(wire.encode(message), payload)

    def send_frames(self, *frames: bytes) -> None:
        """Send anything."""
        self._socket.send_multipart(frames)

    def is_cut_off(self) -> bool:
        """Wait until the host closes the connection."""
        return bool(self._watch.poll(int(WAIT_S * 1000)))

    def hear(self, kind: type[M]) -> M:
        """Return the next message of a kind; whatever comes before it is let go."""
        return self.hear_with_payload(kind)[0]

    def hear_with_payload(self, kind: type[M]) -> tuple[M, bytes]:
        """Return the next message of a kind and its payload."""
        end_s = time.monotonic() + WAIT_S
        while self._socket.poll(max(0, int((end_s - time.monotonic()) * 1000))):
            header, *rest = self._socket.recv_multipart()
            payload = rest[0] if rest else b""
            message = wire.decode(header, wire.FROM_HOST)
            if isinstance(message, kind):
                return message, payload
        raise AssertionError(f"the host never sent {kind.kind}")

    def hello(self) -> wire.Welcome:
        """Open the session."""
        self.greet()
        return self.hear(wire.Welcome)

    def greet(self, proto: int = wire.PROTOCOL, **changed: object) -> None:
        """Say HELLO as an agent of a protocol would; `changed` fields of it, None: it has no such field."""
        hello = wire.Hello(self.session, proto, proto, "raw", "raw-machine", 1 << 18, 1, "", 0, 0, int(time.time()))
        content = {"kind": "hello", **vars(hello), **changed}
        self.send_frames(msgpack.packb({name: value for name, value in content.items() if value is not None}))

    def ready(self) -> None:
        """Claim to hold the model and the data that the host asks for."""
        load = self.hear(wire.Load)
        task = make(load.task, json.loads(load.options), load.seed, None)
        digest, nbytes = task.manifest.digest(), task.manifest.nbytes
        self.send(
            wire.Ready(self.session, load.run, digest, nbytes, task.samples, task.data_label, 1, "modelled", True)
        )

    def take(self) -> tuple[wire.Assign, int]:
        """Take the next assignment and the whole model; return it and the model's size."""
        assign, model = self.hear_with_payload(wire.Assign)
        have = len(model)  # a small one comes along
        while have < assign.base_bytes:
            _, payload = self.hear_with_payload(wire.Chunk)
            have += len(payload)
        self.send(wire.Taken(self.session, assign.lease))
        return assign, have

    def upload(
        self, assign: wire.Assign, update: bytes, *, compute_uj: int = 300_000, **changed: object
    ) -> None:  # fmt: skip
        """Claim to have done an assignment with this update; `changed` fields of the result are lies."""
        samples = sum(end - begin for _, begin, end in assign.ranges)
        result = {
            "session": self.session, "run": assign.run, "round": assign.round, "slice": assign.slice,
            "attempt": assign.attempt, "lease": assign.lease, "samples": samples, "steps": 5, "compute_us": 100_000,
            "overruns": 0, "late_us": 0, "base_sha256": assign.base_sha256, "update_bytes": len(update),
            "update_sha256": hashlib.sha256(update).hexdigest(), "again": False, **changed,
        }  # fmt: skip
        self.send(wire.Result(**result))  # type: ignore[arg-type]
        self.send(wire.Chunk(self.session, assign.lease, 0), update)
        self.commit(assign.lease, compute_uj)

    def commit(self, lease: int, compute_uj: int = 300_000) -> None:
        """Claim that the whole update of a lease is there."""
        self.send(wire.Commit(self.session, lease, compute_uj, 0, "modelled", 0))

# SPDX-License-Identifier: Apache-2.0
"""The operator's end of the link: one DEALER that talks to one host daemon. No wait here is without a deadline.

Frames in, frames out; which ones is operator_wire's business. The presets are those of an agent: docs/PROTOCOL.md.
"""

from __future__ import annotations

import struct
import time
from contextlib import suppress

import zmq

from paceline.errors import KeyFileError, LinkError
from paceline.keys import KeyPair, fingerprint
from paceline.wire import MAX_FRAME

HANDSHAKE_S = 10.0  # libzmq lets go of a connection on which nobody greets for so long
CONNECT_S = 10.0  # to a host that is there: a handshake takes milliseconds, a far or busy one a second
GOODBYE_MS = 300


class OperatorLink:
    """Connects to `endpoint`, whose key must be `host_key`, as the operator who holds `keys`.

    Raises LinkError when nobody is there, KeyFileError when either key is not the one that the other side knows.
    """

    def __init__(self, endpoint: str, host_key: str, keys: KeyPair) -> None:
        self._endpoint, self._host_key, self._keys = endpoint, host_key, keys
        self._context = zmq.Context()
        self._context.linger = 0
        self._socket = _dealer(self._context, keys, host_key)
        self._watch = self._socket.get_monitor_socket(
            zmq.EVENT_CONNECTED
            | zmq.EVENT_CONNECT_RETRIED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def send(self, header: bytes, payload: bytes) -> None:
        """Send. Raises LinkError when the connection is gone."""
        try:
            self._socket.send_multipart([header, payload], zmq.DONTWAIT)
        except zmq.Again:
            raise LinkError(f"the connection to {self._endpoint} is lost; is the host still running?") from None

    def receive(self, timeout_s: float) -> tuple[bytes, bytes] | None:
        """Return the next message; None: none in time. Raises LinkError when the host has gone."""
        end_s = time.monotonic() + timeout_s
        poller = zmq.Poller()
        for source in (self._socket, self._watch):
            poller.register(source, zmq.POLLIN)
        while True:
            poller.poll(max(0, int((end_s - time.monotonic()) * 1000 + 0.999)))
            with suppress(zmq.Again):  # what came before the end of a connection is still heard
                frames = self._socket.recv_multipart(zmq.DONTWAIT)
                if len(frames) <= 2:
                    return frames[0], frames[1] if len(frames) == 2 else b""
            if self._event() is not None:
                raise LinkError(f"the host at {self._endpoint} has ended the connection; has it been stopped?")
            if time.monotonic() >= end_s:
                return None

    def close(self) -> None:
        """Close; what was sent last gets GOODBYE_MS to leave."""
        self._socket.disable_monitor()
        self._watch.close(linger=0)
        self._socket.close(linger=GOODBYE_MS)
        self._context.term()

    def _connect(self) -> None:
        try:
            self._socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            raise LinkError(
                f"cannot connect to {self._endpoint}: {error.strerror}; expected tcp://ADDRESS:PORT"
            ) from None
        end_s, shaking_s = time.monotonic() + CONNECT_S, 0.0
        while self._watch.poll(max(0, int((end_s - time.monotonic()) * 1000))):
            kind = self._event()
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise KeyFileError(
                    f"{self._endpoint} refused this operator's key, fingerprint {fingerprint(self._keys.public)}; put "
                    f"its .pub file, holding {self._keys.public}, into the operators folder of the host's keys"
                )
            if kind == zmq.EVENT_CONNECTED:
                shaking_s = time.monotonic()
            elif shaking_s and time.monotonic() - shaking_s > 0.9 * HANDSHAKE_S:
                break  # closed by this end: the host said nothing at all
            elif shaking_s:  # closed in mid-handshake
                raise KeyFileError(
                    f"{self._endpoint} ended the CURVE handshake: it is no paceline host, or not the one whose key is "
                    f"pinned here (fingerprint {fingerprint(self._host_key)}); compare with the host's host.pub"
                )
            elif kind == zmq.EVENT_CONNECT_RETRIED:
                raise LinkError(
                    f"nothing listens at {self._endpoint}; start the host there (paceline host --config host.toml)"
                )
        raise LinkError(f"{self._endpoint} has not answered for {CONNECT_S:g} s; is that machine on and reachable?")

    def _event(self) -> int | None:
        """Return the kind of the next monitor's event. By hand: pyzmq's own parser imports asyncio."""
        with suppress(zmq.Again):
            return int(struct.unpack_from("=H", self._watch.recv_multipart(zmq.DONTWAIT)[0])[0])
        return None


def _dealer(context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, host_key: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.immediate = 1
    socket.maxmsgsize = MAX_FRAME
    socket.sndhwm = 64
    socket.rcvhwm = 0
    socket.handshake_ivl = int(HANDSHAKE_S * 1000)
    socket.connect_timeout = 10_000
    socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, 60
    socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = 10, 3
    socket.tcp_maxrt = 30_000
    socket.curve_serverkey = host_key.encode()
    socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
    return socket

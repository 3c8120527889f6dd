# SPDX-License-Identifier: Apache-2.0
"""One preloaded process that forks a trainer for each connection: eleven emulated boards on one machine share their
libraries.

For local fleets only (DECISIONS 50); a board spawns its trainer. The server has one thread, as a fork needs; it lives
until its stdin closes. Its trainers live until their own socket does.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from paceline_agent.trainer import serve

BACKLOG = 128
REAP_S = 1.0  # ended trainers are collected at least this often


def main(argv: list[str] | None = None) -> int:
    """Preload, listen, fork; return when stdin closes."""
    parser = argparse.ArgumentParser(prog="paceline_agent.trainer_server", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix socket to listen on")
    parser.add_argument("--preload", default="", help="modules to import first, separated by commas")
    arguments = parser.parse_args(argv)
    preload([name for name in arguments.preload.split(",") if name])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        hidden = arguments.socket.with_suffix(".starting")
        listener.bind(str(hidden))
        listener.listen(BACKLOG)
        hidden.rename(arguments.socket)  # who sees the path can connect
        try:
            return accept_until_eof(listener)
        finally:
            arguments.socket.unlink(missing_ok=True)
            with suppress(OSError):  # the folder was made for the socket; a killed fleet cannot remove it
                arguments.socket.parent.rmdir()


def preload(names: list[str]) -> None:
    """Import with one thread in every library, so that a fork copies all there is."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    for name in names:
        module = importlib.import_module(name)
        if name == "torch":
            module.set_num_threads(1)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        sys.exit(f"the trainer server has {threads} threads after importing {', '.join(names)}; it needs one to fork")
    gc.collect()
    gc.freeze()  # the collector of a child would touch, and so copy, every page


def accept_until_eof(listener: socket.socket) -> int:
    """Fork a trainer for each connection."""
    while True:
        ready, _, _ = select.select((listener, sys.stdin), (), (), REAP_S)
        _reap()
        if sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
            return 0
        if listener in ready:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    _become_trainer(listener, connection)


def _become_trainer(listener: socket.socket, connection: socket.socket) -> None:
    """Run a trainer in this forked process; never returns."""
    status = 70
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end closes the socket
        listener.close()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        status = serve(connection)
    except BaseException:  # this frame is the top of the process
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""`paceline boards console`: the installation of `boards install`, through the serial console of a board."""

from __future__ import annotations

import argparse
import getpass
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.commandline import UsageError
from paceline.errors import KeyFileError, PacelineError
from paceline.keys import check_name
from paceline.talk import Talk
from paceline_host.onboard import crew
from paceline_host.onboard.bundle import bundles, make_bundle, read_bundle
from paceline_host.onboard.console import Console, SerialShell
from paceline_host.onboard.crew import Outcome
from paceline_host.onboard.inventory import Inventory, Place
from paceline_host.onboard.serial_line import SerialLine
from paceline_host.onboard.tool import host_of, port_of, recap


def console(arguments: argparse.Namespace, talk: Talk) -> int:
    """Install on the board behind a serial port."""
    host, name = host_of(arguments), check_name(arguments.name)
    if arguments.prefix is not None and not arguments.prefix.startswith("/"):
        raise UsageError("paceline boards console: error: --prefix: expected an absolute path of the board")
    wish = crew.Wish(
        home="user" if arguments.user else arguments.prefix or "system",
        host_key=host.read_keys().public,
        port=port_of(host.listen),
        endpoint=arguments.endpoint,
        python=arguments.python,
        meter=arguments.meter,
        take_over=arguments.take_over,
    )
    given = read_bundle(arguments.bundle) if arguments.bundle is not None else None
    with (
        TemporaryDirectory(prefix="paceline-boards-") as folder,
        closing(SerialLine(arguments.port, arguments.baud)) as line,
    ):
        made = Console(line)
        shell = SerialShell(arguments.port, console=made, say=lambda text: talk.info(f"{name}: {text}", board=name))
        bundle_for = bundles(Path(folder), given, lambda arch, out: make_bundle(arch, out, arguments.wheels))
        gang = crew.Crew(wish, bundle_for, _Keys(Path(host.keys)), _Unheard(), talk.info)

        def one(name: str) -> Outcome:
            talk.info(f"{name}: logging in at {arguments.port}", board=name)
            made.enter(arguments.login, lambda: _password(arguments), wish.python)
            is_done = False
            try:
                outcome = gang.install(name, shell)
                is_done = True
            finally:
                with suppress(PacelineError):  # the line is gone: then nobody can be logged out
                    made.leave(is_done=is_done)
            return outcome

        outcome = crew.tried(name, one, arguments.port)  # in this thread: Ctrl-C reaches a question for the password
    if not outcome.exit_code:
        talk.info(f"{name}: its HELLO comes once it has a network; `paceline status` of the daemon shows it then")
    return recap([outcome], arguments.json, talk)


def _password(arguments: argparse.Namespace) -> str:
    """Return the password: of a file that nobody else may read, else it is asked for."""
    path: Path | None = arguments.password_file
    if path is None:
        try:
            return getpass.getpass(f"password of {arguments.login} on the board: ")
        except EOFError:
            raise KeyFileError("there is no terminal to ask for the password at: --password-file names it") from None
    try:
        if path.stat().st_mode & 0o077:
            raise KeyFileError(f"{path} may be read by others; run: chmod 600 {path}")
        return path.read_text(encoding="utf-8").partition("\n")[0]
    except OSError as error:
        raise KeyFileError(f"--password-file {path}: {error.strerror}") from None


class _Keys(Inventory):
    """Lets the board's key in, and notes no way to it: there is none over ssh."""

    def put(self, name: str, place: Place) -> None:
        """Note nothing."""


class _Unheard:
    """No HELLO is waited for: the board may have no network yet."""

    hurries = False

    def admit(self, name: str, public: str) -> None:
        """Whoever serves reads the key folder."""

    def wait(self, name: str, wait_s: float = 0.0) -> bool:
        return True

    def close(self) -> None:
        """Nothing is held."""

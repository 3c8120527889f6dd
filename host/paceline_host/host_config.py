# SPDX-License-Identifier: Apache-2.0
"""host.toml and operator.toml as frozen dataclasses: the daemon's keys and its operators'. Makes both, on request."""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from paceline import foreign, toml
from paceline.errors import KeyFileError, SettingsError, StorageError
from paceline.keys import KeyPair, is_public, read_boards, read_pair, read_public, write_pair
from paceline.settings import Bounds, load, read
from paceline.sheet import Sheet

PORT = 5570
WHERE = "PACELINE_HOST"  # the environment variable that names an operator.toml


@dataclass(frozen=True)
class HostConfig:
    """One host daemon. Relative paths start at the file's folder."""

    listen: str = f"tcp://*:{PORT}"  # where boards and operators connect; * is every interface of this machine
    keys: str = "keys"  # host.key and host.pub, boards/NAME.pub, operators/NAME.pub
    runs_dir: str = "runs"  # where the folders of submitted experiments are made
    data_dir: str = ""  # folder of data sets; empty: the cache of `paceline data fetch`
    patience_s: Annotated[float, Bounds(ge=0.5, le=86_400)] = 30.0  # of sessions; a run's own waits come from its file
    chunk_bytes: Annotated[int, Bounds(ge=1 << 15, le=1 << 20)] = 1 << 19
    resume: bool = True  # at the start take up what an earlier life of this host left unfinished

    def read_keys(self) -> KeyPair:
        """Return the host's pair. Raises KeyFileError."""
        return read_pair(Path(self.keys) / "host.key")

    def read_peers(self, faults: list[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return boards and operators, name -> public key each; files that hold no key of their own go to `faults`.

        Raises KeyFileError for a folder that cannot be read.
        """
        boards = read_boards(Path(self.keys) / "boards", faults)
        return boards, read_boards(Path(self.keys) / "operators", faults)


@dataclass(frozen=True)
class OperatorConfig:
    """Where a host daemon is, and who asks. Relative paths start at the file's folder."""

    endpoint: str  # tcp://ADDRESS:PORT
    host_key: str  # 40 characters, or the path of the host's .pub file
    key_file: str  # this operator's secret key, NAME.key with NAME.pub beside it

    def read_keys(self) -> tuple[KeyPair, str]:
        """Return the operator's pair and the host's public key. Raises KeyFileError."""
        host = self.host_key if is_public(self.host_key) else read_public(Path(self.host_key))
        return read_pair(Path(self.key_file)), host


def load_host(path: Path) -> HostConfig:
    """Read host.toml; its paths come back absolute. Raises SettingsError."""
    config, base = load(path, HostConfig, where=path.name), path.resolve().parent
    _check_endpoint(path.name, "listen", config.listen)
    return replace(
        config, keys=str(base / config.keys), runs_dir=str(base / config.runs_dir),
        data_dir=str(base / config.data_dir) if config.data_dir else "",
    )  # fmt: skip


def is_host_file(path: Path) -> bool:
    """Tell a host.toml from an experiment file: it has no tables."""
    try:
        content = toml.parse(foreign.read_text(path))
    except (OSError, ValueError):
        return False
    return bool(content) and not any(isinstance(value, dict) for value in content.values())


def host_with_sheet(path: Path) -> tuple[HostConfig, Sheet]:
    """Read host.toml as it stands; return it with the sheet that knows where each key stands. Raises SettingsError."""
    sheet = Sheet.read(path, path.name)
    config, faults = read(sheet, HostConfig)
    if config is None:
        raise SettingsError(faults)
    return config, sheet


def load_operator(where: str | None) -> OperatorConfig:
    """Read the operator.toml that `where` names: the file, its folder, the host.toml beside it, or an endpoint, which
    then stands in for the one of the usual file. None: $PACELINE_HOST, else ~/.config/paceline/operator.toml.

    Raises SettingsError.
    """
    where = where or os.environ.get(WHERE)
    endpoint = where if where and where.startswith(("tcp://", "ipc://")) else ""
    path = _usual() if endpoint or not where else Path(where)
    if path.is_dir() or path.name == "host.toml":
        path = (path if path.is_dir() else path.parent) / "operator.toml"
    if not path.exists():
        why = (
            f"{endpoint} says where the host is; the keys are those of {path}, which does not exist"
            if endpoint else f"{path} does not exist, so there is no host to speak to"
        )  # fmt: skip
        text = f"{why}; name an operator.toml with --host or in ${WHERE} (paceline host --init FOLDER makes one)"
        raise SettingsError([text])
    config, base = load(path, OperatorConfig, where=path.name), path.resolve().parent
    _check_endpoint(path.name, "endpoint", config.endpoint)
    return OperatorConfig(
        endpoint=endpoint or config.endpoint,
        host_key=config.host_key if is_public(config.host_key) else str(base / config.host_key),
        key_file=str(base / config.key_file),
    )


def make_host(folder: Path, new_pair: KeyPair, new_operator: KeyPair) -> tuple[Path, Path]:
    """Make keys, host.toml and operator.toml in `folder`; never over what is there. Return the two files.

    Raises KeyFileError or StorageError.
    """
    name = _user()
    files = {
        folder / "host.toml": _HOST_TOML,
        folder / "operator.toml": _OPERATOR_TOML.format(key_file=toml.inline(f"{name}.key"), port=PORT),
    }
    for path in files:
        if path.exists():
            raise StorageError(f"{path} exists already; remove it yourself if it is to be replaced")
    write_pair(folder / "keys", "host", new_pair)
    write_pair(folder, name, new_operator)
    try:
        for role in ("boards", "operators"):
            (folder / "keys" / role).mkdir(exist_ok=True)
        (folder / "keys" / "operators" / f"{name}.pub").write_text(new_operator.public + "\n", encoding="ascii")
        for path, text in files.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise KeyFileError(f"cannot write into {folder}: {error.strerror}") from None
    return folder / "host.toml", folder / "operator.toml"


def _usual() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "paceline" / "operator.toml"


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        name = ""
    return re.sub(r"[^A-Za-z0-9_-]", "", name) or "operator"


def endpoint_fault(value: str) -> str:
    """Return what is wrong with an endpoint; empty: nothing that could be seen without trying."""
    if value.startswith("ipc://"):
        return ""
    address, _, port = value.removeprefix("tcp://").rpartition(":")
    if not value.startswith("tcp://") or not address or not (port == "*" or (port.isdecimal() and int(port) < 1 << 16)):
        return f"{value!r}: expected tcp://ADDRESS:PORT with a port below 65536"
    return ""


def _check_endpoint(file: str, key: str, value: str) -> None:
    if fault := endpoint_fault(value):
        raise SettingsError([f"{file}: {key} = {fault}"])


_HOST_TOML = f"""\
# The host daemon: paceline host --config host.toml
# Relative paths start at this file's folder. All values below are the defaults.

# listen = "tcp://*:{PORT}"    # boards and operators connect here; tcp://127.0.0.1:{PORT} keeps it to this machine
# keys = "keys"                # host.key, boards/NAME.pub, operators/NAME.pub; watched while the host runs
# runs_dir = "runs"
# data_dir = ""                # "": the cache of `paceline data fetch`
# patience_s = 30.0            # a board that is silent for so long counts as gone
# chunk_bytes = 524288
# resume = true                # take up unfinished experiments when the host starts
"""

_OPERATOR_TOML = """\
# Whoever holds this operator's key may submit, watch and stop experiments: keep the key file to yourself.
# For another machine: copy this file, the key pair and keys/host.pub there, and put the host's address below.
endpoint = "tcp://127.0.0.1:{port}"
host_key = "keys/host.pub"
key_file = {key_file}
"""

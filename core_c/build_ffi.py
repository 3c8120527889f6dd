# SPDX-License-Identifier: Apache-2.0
"""Turns paceline.h and core_c/src into the extension paceline._core; setup.py names it."""

import os
import re
from pathlib import Path

from cffi import FFI

HERE = Path(os.path.relpath(Path(__file__).parent))  # setuptools refuses absolute source paths

declared = re.search(
    r"/\* cffi: begin \*/(.*?)/\* cffi: end \*/",
    (HERE / "include" / "paceline.h").read_text(encoding="utf-8"),
    re.DOTALL,
)
if declared is None:
    raise SystemExit("core_c/include/paceline.h lost its cffi markers")

ffi = FFI()
ffi.cdef(declared.group(1))
ffi.set_source(
    "paceline._core",
    '#include "paceline.h"',
    sources=sorted(str(path) for path in (HERE / "src").glob("*.c")),
    include_dirs=[str(HERE / "include")],
    depends=[str(path) for path in sorted([*HERE.glob("include/*.h"), *HERE.glob("src/*.h"), HERE / "flags.txt"])],
    extra_compile_args=(HERE / "flags.txt").read_text(encoding="utf-8").split(),  # CMake reads the same list
)

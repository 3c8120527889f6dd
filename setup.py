# SPDX-License-Identifier: Apache-2.0
"""Where the three packages live and how core_c is built. All else is in pyproject.toml."""

from setuptools import find_packages, setup

ROOTS = {"paceline": "common", "paceline_agent": "agent", "paceline_host": "host"}

setup(
    packages=[name for top, root in ROOTS.items() for name in find_packages(root, include=[top, f"{top}.*"])],
    package_dir={top: f"{root}/{top}" for top, root in ROOTS.items()},
    cffi_modules=["core_c/build_ffi.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # the extension is built against the stable ABI
)

# SPDX-License-Identifier: Apache-2.0
"""Plants a fault in each process that has this folder in its path; PACELINE_PLANTED names it, a module of this folder.

Such a module has TARGET, the module that it changes as soon as that is imported, and `plant`, which is given it.
"""

import importlib
import importlib.util
import os
import sys
from typing import Any


class _Plant:
    """Finds the target as usual, and lets it be changed once it is there."""

    def __init__(self, fault: Any) -> None:
        self._fault = fault

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._fault.TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        plain = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            plain(module)
            self._fault.plant(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Plant(importlib.import_module(os.environ["PACELINE_PLANTED"])))

# SPDX-License-Identifier: Apache-2.0
"""For one test: a wrong scaling, the mean of the ranks' means, in each process that has this folder in its path."""

import sys
from typing import Any


class _Plant:
    """Changes paceline.torch.gradients as soon as it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "paceline.torch.gradients":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        plain = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            plain(module)
            right = module.SampleMean._reduce

            def wrong(self: Any, bucket: Any) -> Any:
                self.counts = self.counts and (1, module.dist.get_world_size())
                return right(self, bucket)

            module.SampleMean._reduce = wrong

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Plant())

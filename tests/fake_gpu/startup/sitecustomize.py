"""Make the fake device usable in every Python process below this one: Python imports this first.

Commands start processes of their own (launcher, comparison, benchmarks). This folder is on their
PYTHONPATH when `library.environment(everywhere=True)` made their environment. Processes that never
import torch, and the compiler's workers, stay as they are.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder that installs the device once torch has been imported."""

    _looking = False
    _loader: importlib.abc.Loader

    def find_spec(self, name, path=None, target=None):
        """Return torch's spec with this loader around its own; also for those who only ask."""
        if name != "torch" or self._looking or "torch" in sys.modules:
            return None
        self._looking = True
        try:
            found = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if found is not None:
            self._loader, found.loader = found.loader, self
        return found

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        from fake_gpu import plugin

        plugin.install()


if not any("compile_worker" in word for word in sys.orig_argv):
    sys.meta_path.insert(0, _AfterTorch())

"""Have a Python process call `probe.attach()` once torch has been imported there.

`write_start(folder)` writes a `sitecustomize.py` that does this for each Python whose PYTHONPATH
begins with that folder. A `sitecustomize` of the reader's runs before it. A Python that never
imports torch is left as it is.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import random
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

ORDERS_VARIABLE = "GALLERY_TRY"
"""Variable with what a script's processes are to do, as JSON (`probe.Orders`)."""
SCRATCH_VARIABLE = "GALLERY_TRY_SCRATCH"
"""Variable with the folder below which links become files of the run's own (`scratch`)."""

_START = """\
import sys
from importlib.machinery import PathFinder

sys.path.remove({folder!r})
spec = PathFinder.find_spec("sitecustomize")
try:
    if spec is not None:
        spec.loader.exec_module(sys.modules[__name__])
finally:
    sys.path.insert(0, {folder!r})
from gallery_lib.trial import attach

attach.wait_for_torch()
"""


def write_start(folder: Path) -> None:
    """Write `sitecustomize.py` into the folder."""
    (folder / "sitecustomize.py").write_text(_START.format(folder=str(folder)), encoding="utf-8")


def wait_for_torch() -> None:
    """Call `probe.attach()` when this process has imported torch, and protect linked files."""
    from gallery_lib.trial import scratch

    random.seed(0)  # those of torch and numpy are set when torch is there
    if (root := os.environ.get(SCRATCH_VARIABLE)) is not None:
        scratch.protect(root)
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finder that gives torch a loader of ours; a library may look for torch and not import it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        spec = PathFinder.find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """torch's loader, and the probe behind it."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.remove(self._finder)
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        from gallery_lib.trial import probe

        probe.attach()

"""Make the fake device usable in every Python process below this one: Python imports this first.

Commands start processes of their own (launcher, comparison, benchmarks). This folder is on their
PYTHONPATH when `running.environment(everywhere=True)` made their environment. Processes that never
import torch, and the compiler's workers, stay as they are.

With FAKE_GPU_COMPILER=aot_eager (or eager) the compiler `inductor` is that one. Kernels that Triton
compiles do not run on this device; so models that are compiled have right values.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType


def _install_device(torch: ModuleType) -> None:
    from fake_gpu import plugin

    plugin.install()


def _replace_inductor(backends: ModuleType) -> None:
    """Let the gallery's compiler go through Dynamo and autograd as always, and write no kernels."""

    def compile_in_place(model, options, device, channels_last):
        backends.compile_calls(model, backend=os.environ["FAKE_GPU_COMPILER"])
        return f"{os.environ['FAKE_GPU_COMPILER']}, on the fake device"

    backends._compile = compile_in_place


class _After(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder that calls `then` once the module `name` has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then
        self._looking = False
        self._loader: importlib.abc.Loader

    def find_spec(self, name, path=None, target=None):
        """Return the module's spec with this loader around its own; also for those who only ask."""
        if name != self._name or self._looking or name in sys.modules:
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
        self._then(module)


if not any("compile_worker" in word for word in sys.orig_argv):
    sys.meta_path.insert(0, _After("torch", _install_device))
    if os.environ.get("FAKE_GPU_COMPILER"):
        sys.meta_path.insert(0, _After("gallery_lib.compiler.backend", _replace_inductor))

"""Change a module as soon as a process imports it, from a `sitecustomize.py` on its path."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _After(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's spec, whose loader also calls `then`; None for other modules."""
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == self.name else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(name: str, then: Callable[[Any], None]) -> None:
    """Call `then` with the module `name` once it has been imported."""
    sys.meta_path.insert(0, _After(name, then))

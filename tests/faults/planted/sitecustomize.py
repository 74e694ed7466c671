"""Planted breaches: GALLERY_FAULTS_PLANTED names the one for all Python processes of a command."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import socket
import sys
import time
from types import ModuleType
from typing import Any


def _orphan(module: Any) -> None:
    """Let what a command leaves behind go on."""
    module.end_descendants = lambda *_: None
    module.die_with_parent = lambda: None
    module.end_supervised = lambda process, *_: process.kill()


def _half(module: Any) -> None:
    """Write JSON files in place, and the second half late."""

    def write_json(path: Any, value: Any) -> None:
        text = json.dumps(value, indent=1)
        path.write_text(text[: len(text) // 2])
        time.sleep(1.5)
        path.write_text(text)

    module.write_json = write_json


def _hang(module: Any) -> None:
    """Read no more of what a run prints after a few lines."""

    def read(relay: Any) -> None:
        for _ in range(3):
            relay._output.readline()
        time.sleep(10_000)

    module.Relay._read = read
    module.Relay.close = lambda *_: None


def _wrong_rank(module: Any) -> None:
    """Blame the other rank of two."""
    right = module.ErrorReport.of_killed
    module.ErrorReport.of_killed = lambda rank, *others: right(1 - rank, *others)


def _open_port(module: Any) -> None:
    """Make stores listen on every interface."""
    module.listening_on = lambda host, port: socket.create_server(("0.0.0.0", port))


# The module, what is planted there, and what chaos says of it; another breach does not count.
BREACHES = {
    "orphan": ("gallery_lib.system.processes", _orphan, "still there"),
    "half": ("gallery_lib.system.files", _half, "half written"),
    "hang": ("gallery_lib.system.processes", _hang, "still there"),
    "wrong rank": ("gallery_lib.train.failure", _wrong_rank, "is blamed"),
    "open port": ("gallery_lib.comm.rendezvous", _open_port, "open ports"),
}


class _Planter(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, plant: Any, _: str) -> None:
        self.name, self.plant = name, plant

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.plant(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if planted := os.environ.get("GALLERY_FAULTS_PLANTED"):
    sys.meta_path.insert(0, _Planter(*BREACHES[planted]))

"""Planted breaches: GALLERY_FAULTS_PLANTED names the one for all Python processes of a command."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "helpers"))

from after_import import after_import


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


if planted := os.environ.get("GALLERY_FAULTS_PLANTED"):
    after_import(*BREACHES[planted][:2])

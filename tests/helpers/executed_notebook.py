"""Execution of a notebook with papermill, as a batch does it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

PORT_TAKEN = "ZMQError: Address already in use"
LIMIT_SECONDS = 590
OUT, RUNS = "out.ipynb", "runs"


@dataclass(frozen=True)
class Executed:
    """An executed notebook: its code cells, and the folder with its runs."""

    code: list[Any]
    runs: Path


def execute(
    source: Path, folder: Path, parameters: Mapping[str, Any], environment: Mapping[str, str]
) -> Executed:
    """Run a notebook with papermill, and return its code cells and the folder with its runs.

    Jupyter chooses a kernel's ports before the kernel takes them. A notebook whose kernel lost a
    port to another process meanwhile is started once more.

    Raises:
        AssertionError: The notebook fails, or has not run through.
    """
    code, said = _run_papermill(source, folder, parameters, environment)
    if PORT_TAKEN in said:
        shutil.rmtree(folder)
        code, said = _run_papermill(source, folder, parameters, environment)
    assert code == 0, said[-3000:]
    cells = [
        cell for cell in nbformat.read(folder / OUT, as_version=4).cells if cell.cell_type == "code"
    ]
    assert all(cell.execution_count for cell in cells)
    return Executed(cells, folder / RUNS)


def _run_papermill(
    source: Path, folder: Path, parameters: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run papermill, and return its exit code and what it printed."""
    words = [
        word for parameter, value in parameters.items() for word in ("-p", parameter, str(value))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "papermill.txt"
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(source),
        str(folder / OUT),
        "--cwd",
        str(source.parent),
        *words,
    ]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment, "GALLERY_RUNS_DIR": str(folder / RUNS)},
        )
        deadline = time.monotonic() + LIMIT_SECONDS
        while (
            process.poll() is None
            and time.monotonic() < deadline
            and PORT_TAKEN not in log.read_text()
        ):
            time.sleep(0.5)
        if process.poll() is None:
            # papermill then ends its kernel, and the kernel its processes.
            process.send_signal(signal.SIGINT)
            process.wait(60)
    return process.returncode, log.read_text()

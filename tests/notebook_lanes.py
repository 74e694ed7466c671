"""Executes notebooks with papermill, two side by side, each lane on a core of its own; tests wait for the one they need.

Much of a small notebook's time is spent on one thread (imports, tracing, linking), so two pinned lanes take two thirds
of the time that one after another takes, and do not disturb each other. Large models share a lane, for the sake of
memory. Where processes cannot be pinned there is one lane.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

LARGE = ("alexnet", "vgg16", "hf_Bart", "hf_Bert")
LIMIT_SECONDS = 590
PORT_TAKEN = "ZMQError: Address already in use"
OUT, RUNS = "out.ipynb", "runs"


@dataclass(frozen=True)
class Executed:
    """An executed notebook: its code cells, and the folder with its runs."""

    code: list[Any]
    runs: Path


def execute(source: Path, folder: Path, parameters: Mapping[str, Any], environment: Mapping[str, str], core: int | None = None) -> Executed:
    """Run a notebook with papermill, pinned to `core` when one is named. AssertionError when it fails or has not run through.

    Jupyter chooses a kernel's ports before the kernel takes them; one that lost a port to another process meanwhile is
    started once more.
    """
    code, said = _run_papermill(source, folder, parameters, environment, core)
    if PORT_TAKEN in said:
        shutil.rmtree(folder)
        code, said = _run_papermill(source, folder, parameters, environment, core)
    assert code == 0, said[-3000:]
    cells = [cell for cell in nbformat.read(folder / OUT, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    return Executed(cells, folder / RUNS)


def _run_papermill(
    source: Path, folder: Path, parameters: Mapping[str, Any], environment: Mapping[str, str], core: int | None
) -> tuple[int, str]:
    """papermill's exit code, and what it printed."""
    words = [word for parameter, value in parameters.items() for word in ("-p", parameter, str(value))]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "papermill.txt"
    command = [sys.executable, "-m", "papermill", str(source), str(folder / OUT), "--cwd", str(source.parent), *words]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment, "GALLERY_RUNS_DIR": str(folder / RUNS)},
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )
        deadline = time.monotonic() + LIMIT_SECONDS
        while process.poll() is None and time.monotonic() < deadline and PORT_TAKEN not in log.read_text():
            time.sleep(0.5)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # papermill then ends its kernel, and that its processes
            process.wait(60)
    return process.returncode, log.read_text()


class Lanes:
    """Notebooks on their way: `wait(name)` returns one, executed, or raises what went wrong with it."""

    def __init__(
        self, sources: Mapping[str, Path], parameters: Mapping[str, Mapping[str, Any]], folder: Path, kernel: Mapping[str, str]
    ) -> None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
        lanes: list[Iterable[str]] = [[name for name in sources if name in LARGE], [name for name in sources if name not in LARGE]]
        self._pools = [ThreadPoolExecutor(1) for _ in range(2 if len(cores) > 1 else 1)]
        self._futures: dict[str, Future[Executed]] = {}
        for number, names in enumerate(lanes):
            pool, core = (self._pools[number], cores[number]) if len(self._pools) > 1 else (self._pools[0], None)
            for name in names:
                self._futures[name] = pool.submit(execute, sources[name], folder / name, parameters[name], kernel, core)

    def wait(self, name: str) -> Executed:
        """The notebook `name`; AssertionError when it failed."""
        return self._futures[name].result()

    def close(self) -> None:
        """No notebook that has not begun will begin."""
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

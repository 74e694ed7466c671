"""Run pytest, or Python code, in a process for which the fake device is there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fake_gpu import library

from gallery_lib.system.processes import end_supervised, start_supervised

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900


def pytest_on_device(*arguments: str, **device: Any) -> str:
    """Return what pytest printed about the tests that `arguments` name.

    Args:
        arguments: files and options of pytest.
        device: of the device, as `library.environment` has them.

    Raises:
        AssertionError: with pytest's output, unless all tests passed.
    """
    options = ("-o", "addopts=--strict-markers --import-mode=importlib", "-p", "no:cacheprovider")
    done = run("-m", "pytest", "-p", "fake_gpu.plugin", *options, "-q", *arguments, **device)
    assert done.returncode == 0, done.stdout
    return done.stdout


def code_on_ranks(script: str, ranks: int, arguments: Sequence[str] = (), **device: Any) -> str:
    """Return what `script` printed on several ranks, each with a device of its own."""
    started = ("torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", script)
    done = run("-m", *started, *arguments, **{"devices": ranks, **device})
    assert done.returncode == 0, done.stdout
    return done.stdout


def run(*arguments: str, **device: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python with `arguments`, and leave none of its processes.

    What it prints on both outputs is in `stdout`.

    Raises:
        subprocess.TimeoutExpired: when it takes longer than SECONDS.
    """
    command = [sys.executable, *arguments]
    process = start_supervised(
        command,
        {"OMP_NUM_THREADS": "1", **library.environment(**device)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = process.communicate(timeout=SECONDS)
    finally:
        end_supervised(process)
    return subprocess.CompletedProcess(command, process.returncode, printed)

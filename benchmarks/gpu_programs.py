"""Programs that the benchmarks on a GPU run within limits of time, and the tests marked `gpu`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.system.processes import end_supervised, start_supervised

ROOT = Path(__file__).resolve().parent.parent
SANITIZED = (
    "(test_the_kernel or test_every_optimizer or on_the_device) and not 50265 and not 1000003"
)
"""Tests of kernels that a sanitizer runs; it is slow."""


def run(command: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """Return exit code and output of a program; None where it was ended at its limit.

    None of its processes outlives it or this process: a sanitizer's child would stay on the GPU.
    """
    process = start_supervised(
        command,
        {},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end_supervised(process)
        output, _ = process.communicate()
        return None, f"{output}\nended after {seconds:.0f} s"
    finally:
        end_supervised(process)
    return process.returncode, output


def pytest_command(*arguments: str) -> list[str]:
    """Return the command that runs tests marked `gpu`, in one process."""
    # With or without pytest-xdist.
    options = ["-o", "addopts=--strict-markers --import-mode=importlib", "-m", "gpu", "-rs"]
    quiet = ["-p", "no:cacheprovider", "--no-header"]
    return [sys.executable, "-m", "pytest", *options, *quiet, *arguments]


def gpu_tests(folder: Path = ROOT / "tests") -> list[str]:
    """Return the files with tests marked `gpu`, relative to the checkout.

    Only these are collected: others need packages that a machine with a GPU may lack.
    """
    return [
        str(path.relative_to(ROOT))
        for path in sorted(folder.rglob("test_*.py"))
        if "mark.gpu" in path.read_text(encoding="utf-8") and path.parent.name != "fake_gpu"
    ]

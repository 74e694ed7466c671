"""Programs of the benchmarks on a GPU end within their limits, and none outlives its benchmark."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import psutil
import pytest

GRANDCHILD = """
import subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
Path(sys.argv[1]).write_text(str(child.pid))
print("begun", flush=True)
time.sleep(120)
"""


@pytest.fixture
def programs(checkout: Path) -> ModuleType:
    """Return benchmarks/gpu_programs.py as a module."""
    path = checkout / "benchmarks" / "gpu_programs.py"
    spec = importlib.util.spec_from_file_location("gpu_programs", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gone(file: Path, seconds: float = 20) -> bool:
    """Return whether the process whose number is in `file` ends within `seconds`."""
    number = int(file.read_text())
    end = time.monotonic() + seconds
    while psutil.pid_exists(number) and time.monotonic() < end:
        time.sleep(0.1)
    return not psutil.pid_exists(number)


def test_a_program_gives_its_exit_code_and_output(programs: ModuleType) -> None:
    command = [sys.executable, "-c", "print('said'); raise SystemExit(3)"]
    assert programs.run(command, 60) == (3, "said\n")


def test_at_its_limit_a_program_ends_with_its_children(
    programs: ModuleType, tmp_path: Path
) -> None:
    number = tmp_path / "number"
    code, output = programs.run([sys.executable, "-c", GRANDCHILD, str(number)], 5)
    assert code is None and output == "begun\n\nended after 5 s"
    assert gone(number)


def test_a_killed_benchmark_leaves_no_program(checkout: Path, tmp_path: Path) -> None:
    number = tmp_path / "number"
    body = (
        f"import sys; sys.path[:0] = [{str(checkout / 'benchmarks')!r}, {str(checkout)!r}]\n"
        "import gpu_programs\n"
        f"gpu_programs.run([sys.executable, '-c', {GRANDCHILD!r}, {str(number)!r}], 100)\n"
    )
    benchmark = subprocess.Popen([sys.executable, "-c", body])
    end = time.monotonic() + 60
    while not (number.exists() and number.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    benchmark.kill()
    benchmark.wait()
    assert gone(number)

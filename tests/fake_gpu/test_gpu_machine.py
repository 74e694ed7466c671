"""A machine with a GPU as they are lent: torch 2.11, nothing of Jupyter, and no installed package.

The environment has the packages of such an image only. It is made once, in the cache folder. What
runs there runs on the fake device.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_gpu.running import ROOT, SECONDS

from gallery_lib.system import paths
from gallery_lib.system.processes import end_supervised, start_supervised

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

PACKAGES = (
    "torch==2.11.*", "torchvision==0.26.*", "timm", "transformers", "matplotlib", "cuda-core>=1.0",
    "psutil", "pytest", "hypothesis",
)  # fmt: skip
DISK_GIB = 20


@pytest.fixture(scope="module")
def python() -> str:
    """Return the Python of the environment."""
    folder = paths.cache_dir() / "gpu-machine"
    made, of_it = folder / "packages.txt", folder / "bin" / "python"
    wanted = "\n".join(PACKAGES)
    if made.is_file() and made.read_text() == wanted:
        return str(of_it)
    free = shutil.disk_usage(paths.cache_dir()).free / 2**30
    if free < DISK_GIB:
        pytest.skip(f"an environment with torch 2.11 needs {DISK_GIB} GiB of disk; {free:.0f} free")
    uv = shutil.which("uv") or f"{sys.prefix}/bin/uv"
    if not Path(uv).is_file():
        pytest.skip("no uv here, which makes the environment with torch 2.11")
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "--quiet", "--python", str(of_it), *PACKAGES],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            pytest.skip(f"torch 2.11 cannot be installed, which a network allows: {done.stderr}")
    made.write_text(wanted)
    return str(of_it)


def test_it_has_no_package_of_the_gallerys_own(python: str, tmp_path: Path) -> None:
    code = """
import importlib.util, torch
print(torch.__version__.split(".")[:2])
names = ("gallery_lib", "papermill", "jupyterlab", "simplejpeg", "msgspec")
print([name for name in names if importlib.util.find_spec(name)])
"""
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == ["['2', '11']", "[]"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "tests",
    [
        "test_device.py::test_what_runs_inside[late]",
        "test_device.py::test_the_tests_for_a_gpu_pass[late]",
        "test_commands.py::test_the_first_ten_minutes_on_a_gpu_are_not_lost",
    ],
)
def test_what_runs_on_a_gpu_runs_there(python: str, tests: str) -> None:
    options = ("-o", "addopts=--strict-markers --import-mode=importlib", "-p", "no:cacheprovider")
    process = start_supervised(
        [python, "-m", "pytest", "-q", *options, f"tests/fake_gpu/{tests}"], {},
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=SECONDS)
    finally:
        end_supervised(process)
    assert process.returncode == 0 and "1 passed" in printed, printed

"""Run pytest, or Python code, in a process for which the fake device is there.

The device is a library, built at first use from the sources in `device/`. g++ builds them against
the CUDA headers that torch or Triton brings; neither a GPU nor a driver is needed. Builds are kept
in `.cache/fake_gpu`, under a hash of the sources.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gallery_lib.system import paths
from gallery_lib.system.processes import end_supervised, start_supervised

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900
SOURCES = Path(__file__).parent / "device"
TESTS = Path(__file__).parents[1]
_COMMAND = [
    *("g++", "-shared", "-fPIC", "-O1", "-g"),
    *("-std=c++17", "-Wall", "-Wno-deprecated-declarations"),
]
_NAME, _MANAGEMENT = "libcuda.so.1", "libnvidia-ml.so.1"


def _headers() -> list[Path]:
    """Return the folders of CUDA's headers: those of torch's own CUDA, where there are any, first.

    Triton's may be of another release, which declares functions differently; it has what torch's
    leave out.
    """
    triton = importlib.util.find_spec("triton")
    assert triton is not None and triton.origin is not None, "the CUDA headers come with triton"
    packages = Path(triton.origin).parents[1]
    of_torch = [path.parent for path in packages.glob("nvidia/cu*/include/cuda_runtime_api.h")]
    return [*of_torch, Path(triton.origin).parent / "backends" / "nvidia" / "include"]


@functools.cache
def folder() -> Path:
    """Return the folder that holds the library, which is built if need be."""
    sources = sorted(SOURCES.iterdir())
    everything = repr([[(path.name, path.read_text()) for path in sources], _COMMAND, _headers()])
    built = paths.cache_dir() / "fake_gpu" / hashlib.sha256(everything.encode()).hexdigest()[:24]
    if not (built / _NAME).is_file():
        built.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built) as scratch:
            new = Path(scratch) / _NAME
            headers = [f"-I{path}" for path in _headers()]
            files = [str(path) for path in sources if path.suffix == ".cpp"]
            options = [*headers, f"-Wl,-soname,{_NAME}", *files, "-o", str(new), "-ldl"]
            subprocess.run([*_COMMAND, *options], check=True)
            (Path(scratch) / _MANAGEMENT).symlink_to(_NAME)
            (Path(scratch) / _MANAGEMENT).replace(built / _MANAGEMENT)
            new.replace(built / _NAME)
    return built


def _among_packages() -> Path:
    """Return a folder called site-packages that holds this package."""
    packages = folder() / "site-packages"
    packages.mkdir(exist_ok=True)
    if not (packages / "fake_gpu").exists():
        (packages / "fake_gpu").symlink_to(Path(__file__).resolve().parent)
    return packages


def environment(
    *,
    order: str = "late",
    devices: int = 1,
    memory_gib: float = 8,
    architectures: str = "90",
    everywhere: bool = False,
    arithmetic: bool = True,
) -> dict[str, str]:
    """Return the variables of a process for which the fake device is there.

    Args:
        order: the order in which streams do their work: "late", "early" or "random:SEED".
        devices: the number of devices.
        memory_gib: memory of each, in GiB.
        architectures: of the devices in their order, "90,80" say; others are of 90.
        everywhere: install the device in each process that imports torch, not only in those that
            call `plugin.install()`.
        arithmetic: let operators compute, and refuse kernels of torch that nothing stands in for.
            Without it kernels are counted, and values are whatever memory holds.
    """
    place = str(folder())
    python_path = [str(TESTS), str(TESTS / "helpers"), str(TESTS.parent)]
    if everywhere:
        # Among site-packages, so that an error's lines there do not count as the user's own.
        python_path.insert(0, str(_among_packages()))
        python_path.insert(0, str(Path(__file__).parent / "startup"))
    kept = {name: os.environ[name] for name in os.environ if name != "CUDA_VISIBLE_DEVICES"}
    return {
        **kept,
        "LD_PRELOAD": str(folder() / _NAME),
        "LD_LIBRARY_PATH": place,
        "TRITON_LIBCUDA_PATH": place,
        "PYTHONPATH": os.pathsep.join(python_path),
        "FAKE_GPU_ORDER": order,
        "FAKE_GPU_DEVICES": str(devices),
        "FAKE_GPU_MEMORY": str(int(memory_gib * 2**30)),
        "FAKE_GPU_ARCHITECTURES": architectures,
        "FAKE_GPU_TORCH_KERNELS": "refuse" if arithmetic else "count",
        "FAKE_GPU_OWN_KERNELS": "run" if arithmetic else "count",
    }


def pytest_on_device(*arguments: str, **device: Any) -> str:
    """Return what pytest printed about the tests that `arguments` name.

    Args:
        arguments: files and options of pytest.
        device: of the device, as `environment` has them.

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
        {"OMP_NUM_THREADS": "1", **environment(**device)},
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

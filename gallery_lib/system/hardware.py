"""Facts about this machine: cores, memory, instruction sets, accelerators, limits; versions.

They come from `/proc`, control groups, torch and the driver. Nothing here decides anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.errors import RunFailed
from gallery_lib.system.paths import checkout

CPU_FACTS = Path("/proc/cpuinfo")
CGROUPS = Path("/sys/fs/cgroup")  # of a container, of version 2 or 1
_WITH_BF16_UNITS = {"avx512_bf16", "amx_bf16", "bf16"}


# --------------------------------------------------------------------------------------------------
# Control groups


def cpu_quota() -> float | None:
    """Return the cores' worth of time that this container may use; None: no limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):  # of the other version, or no limit
            words = " ".join((CGROUPS / name).read_text() for name in names).split()
            quota, period = map(int, words)
            return quota / period if quota > 0 else None
    return None


def memory_bytes() -> int:
    """Return the host memory that this container may use, in bytes."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int((CGROUPS / name).read_text()))
    return total


# --------------------------------------------------------------------------------------------------
# CPU


def cores() -> int:
    """Return the CPU cores that this process may use: its affinity mask, cut by its CPU quota."""
    available, quota = len(os.sched_getaffinity(0)), cpu_quota()
    return available if quota is None else min(available, max(1, int(quota)))


def _fact_of_a_core(*names: str) -> str:
    """Return what Linux says of the first core that has one of these facts, or ""."""
    lines = CPU_FACTS.read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(names)), "")


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the instruction-set flags of the first core, as Linux names them; none if unknown."""
    return frozenset(_fact_of_a_core("flags", "Features").split())


def cpu_model() -> str:
    """Return the model name of the CPU; on ARM, which has none, the numbers of maker and part."""
    if name := _fact_of_a_core("model name"):
        return name
    if part := _fact_of_a_core("CPU part"):
        return f"ARM {_fact_of_a_core('CPU implementer')} {part}"
    return platform.processor() or platform.machine()


def isa() -> list[str]:
    """Return the instruction sets that matter for training, among those this CPU has."""
    of_x86 = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")
    return [name for name in (*of_x86, "asimd", "sve", "bf16") if name in cpu_flags()]


def processor() -> str:
    """Return CPU model and instruction sets; hypervisors give one model name to several CPUs."""
    return f"{cpu_model()} ({', '.join(isa())})"


def computes_in_bf16(device_type: str) -> bool:
    """Return whether the device, of several GPUs all, has bfloat16 units, or emulates them."""
    if device_type == "cuda":
        return all(gpu.capability[0] >= 8 for gpu in visible_gpus())
    return bool(_WITH_BF16_UNITS & cpu_flags())


def emulated_bf16(environment: dict[str, Any]) -> bool:
    """Return whether a run, with these `machine_facts()`, was on a CPU without bfloat16 units."""
    return environment["device"] == "cpu" and not _WITH_BF16_UNITS & set(environment["isa"])


def prefers_channels_last(device_type: str) -> bool:
    """Return whether 2-d convolutions gain from channels last (NHWC).

    They do not on x86 CPUs without AVX-512, for which oneDNN's NHWC convolutions are not made.
    """
    return device_type != "cpu" or "avx2" not in cpu_flags() or "avx512f" in cpu_flags()


def cpp_compiler() -> str | None:
    """Return the C++ compiler that Inductor would use on the CPU, or None.

    Inductor looks for no other where CXX names one that is not there.
    """
    name = os.environ.get("CXX") or "g++"
    several_words = len(name.split()) > 1  # as in `ccache g++`
    return shutil.which("g++" if several_words else name)


# --------------------------------------------------------------------------------------------------
# GPUs


@dataclass(frozen=True)
class Gpu:
    """A device as the driver describes it."""

    name: str
    capability: tuple[int, int]  # compute capability, major and minor
    memory_bytes: int = 0
    bus: str = ""  # address on the PCI bus, by which NVML knows it


_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def gpu_count() -> int:
    """Return the number of CUDA devices, counted without initialising CUDA."""
    import torch

    return torch.cuda.device_count()


def device_type() -> str:
    """Return `cuda` where there is a CUDA device, else `cpu`."""
    return "cuda" if gpu_count() else "cpu"


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the devices that CUDA_VISIBLE_DEVICES leaves, in its order.

    The driver knows them without a context, which would take memory of each device. Where there are
    devices, and CUDA does not work, that is a RunFailed.
    """
    count, gpus = gpu_count(), []
    if not count:
        return ()
    driver = ctypes.CDLL("libcuda.so.1")

    def ask(function: str, *arguments: object) -> None:
        if code := getattr(driver, function)(*arguments):
            raise RunFailed(f"CUDA does not work here: {function} returned {code}.")

    ask("cuInit", 0)
    for number in range(count):
        device, major, minor = (ctypes.c_int() for _ in range(3))
        name, bus = ctypes.create_string_buffer(96), ctypes.create_string_buffer(32)
        memory = ctypes.c_size_t()
        ask("cuDeviceGet", ctypes.byref(device), number)
        ask("cuDeviceGetName", name, len(name), device)
        ask("cuDeviceGetPCIBusId", bus, len(bus), device)
        ask("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        for value, attribute in ((major, _MAJOR), (minor, _MINOR)):
            ask("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        capability = (major.value, minor.value)
        gpus.append(Gpu(name.value.decode(), capability, memory.value, bus.value.decode()))
    return tuple(gpus)


def gpu_names() -> str:
    """Return the GPUs with their numbers, as `8 × NVIDIA A100`; "" where there is none."""
    names = Counter(gpu.name for gpu in visible_gpus())
    return " + ".join(f"{count} × {name}" for name, count in names.items())


# --------------------------------------------------------------------------------------------------
# Conditions of a figure


def git_revision(folder: Path) -> str | None:
    """Return `<commit>` or `<commit>+changes` of the checkout at `folder`; None without one."""
    # A run must not write the checkout's index. The revision is the commit's hash, never a tag.
    git = ["git", "--no-optional-locks", "-C", str(folder), "describe", "--always", "--exclude=*"]
    try:
        completed = subprocess.run(
            [*git, "--abbrev=12", "--dirty=+changes"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip() or None


def machine_facts() -> dict[str, Any]:
    """Return the conditions that a figure must be read with: hardware and versions."""
    import torch

    root = checkout()
    devices = gpu_names()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": devices or "cpu",
        "cpu": cpu_model(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "isa": isa(),
        "cuda": torch.version.cuda if devices else None,
        "memory_bytes": memory_bytes(),
        "hostname_hash": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
        "git": git_revision(root) if root else None,
    }


def describe(environment: dict[str, Any]) -> str:
    """Return `2 cores of Intel … (avx512f), 23.4 GiB, no GPU; Python 3.11.7, torch 2.15.0`."""
    gpu = environment["device"] if environment["device"] != "cpu" else "no GPU"
    sets = ", ".join(environment["isa"]) or "no vector extensions known"
    memory = environment["memory_bytes"] / 2**30
    return (
        f"{environment['cores']} cores of {environment['cpu']} ({sets}), {memory:.1f} GiB, {gpu}; "
        f"Python {environment['python']}, torch {environment['torch']}"
    )


def version() -> str:
    """Return the version that pyproject.toml declares."""
    if root := checkout():
        declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        return declared["project"]["version"]
    return importlib.metadata.version("gallery_lib")


def library_version(name: str) -> str | None:
    """Return the installed version of a library, None if it is not installed. Imports nothing."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def version_text() -> str:
    """Return a line for bug reports: `gallery_lib 0.1.0, torch 2.15.0, Python 3.12.1`."""
    torch, python = importlib.metadata.version("torch"), platform.python_version()
    return f"gallery_lib {version()}, torch {torch}, Python {python}"

"""Facts about this machine: cores, memory, instruction sets, accelerators, versions.

They come from `/proc`, the scheduler, torch and the driver (gpus.py). CUDA is never initialised, so
that a notebook can ask before it starts processes. Nothing here decides anything.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import socket
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from gallery_lib.system import cgroups, gpus


def cores() -> int:
    """Return the CPU cores that this process may use.

    That is its affinity mask, cut by the CPU quota of its cgroups.
    """
    available, quota = len(os.sched_getaffinity(0)), cgroups.cpu_quota()
    return available if quota is None else min(available, max(1, int(quota)))


CPU_FACTS = Path("/proc/cpuinfo")


def _fact_of_a_core(*names: str) -> str:
    """Return what Linux says of the first core that it has one of these facts of, or ""."""
    try:
        lines = CPU_FACTS.read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(names)), "")


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the instruction-set flags of the first core, as Linux names them.

    The set is empty where they cannot be read.
    """
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
    return [
        name
        for name in (
            *("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16"),
            *("asimd", "sve", "bf16"),
        )
        if name in cpu_flags()
    ]


def processor() -> str:
    """Return CPU model and instruction sets; one model name can cover different CPUs.

    Hypervisors give one name to several CPUs. So the name alone cannot identify figures and
    choices.
    """
    return f"{cpu_model()} ({', '.join(isa())})"


_WITH_BF16_UNITS = {"avx512_bf16", "amx_bf16", "bf16"}


def computes_in_bf16(device_type: str) -> bool:
    """Return whether the device has bfloat16 arithmetic units, rather than emulating them.

    Of several GPUs all must have them.
    """
    if device_type == "cuda":
        return all(gpu.capability[0] >= 8 for gpu in gpus.visible_gpus())
    return bool(_WITH_BF16_UNITS & cpu_flags())


def emulated_bf16(environment: dict[str, Any]) -> bool:
    """Return whether a run was on a CPU without bfloat16 arithmetic units.

    `environment` are the conditions of the run, as `machine_facts()` returns them.
    """
    return environment["device"] == "cpu" and not _WITH_BF16_UNITS & set(environment["isa"])


def prefers_channels_last(device_type: str) -> bool:
    """Return whether 2-d convolutions gain from channels last (NHWC).

    They do not on x86 CPUs without AVX-512, for which oneDNN's NHWC convolutions are not made.
    """
    return device_type != "cpu" or "avx2" not in cpu_flags() or "avx512f" in cpu_flags()


def memory_bytes() -> int:
    """Return the host memory that this process may use, in bytes.

    That is the physical memory, cut by the limits of its cgroups.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroups.memory_limit()
    return total if limit is None else min(total, limit)


def gpu_count() -> int:
    """Return the number of CUDA devices, counted without initialising CUDA."""
    import torch

    return torch.cuda.device_count()


def gpu_names() -> str:
    """Return the GPUs with their numbers, as `8 × NVIDIA A100`; "" where there is none."""
    names = Counter(gpu.name for gpu in gpus.visible_gpus())
    return " + ".join(f"{count} × {name}" for name, count in names.items())


def device_type() -> str:
    """Return `cuda` where there is a CUDA device, else `cpu`."""
    return "cuda" if gpu_count() else "cpu"


def cpp_compiler() -> str | None:
    """Return the C++ compiler that Inductor would use on the CPU, or None.

    Inductor looks for no other where CXX names one that is not there.
    """
    name = os.environ.get("CXX") or "g++"
    several_words = len(name.split()) > 1  # as in `ccache g++`
    return shutil.which("g++" if several_words else name)


def git_revision(folder: Path) -> str | None:
    """Return `<commit>` or `<commit>+changes` of the checkout at `folder`; None without one."""
    # A run refreshes no index, and tags are no names of commits here.
    git = ["git", "--no-optional-locks", "-C", str(folder), "describe", "--always", "--exclude=*"]
    try:
        done = subprocess.run(
            [*git, "--abbrev=12", "--dirty=+changes"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def machine_facts() -> dict[str, Any]:
    """Return the conditions that a figure must be read with: hardware and versions."""
    import torch

    from gallery_lib.system.paths import checkout

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


def machine_name(environment: dict[str, Any]) -> str:
    """Return the accelerators, else the cores: `8 × a GPU` or `2 cores of a CPU`. No versions."""
    if environment.get("device", "cpu") != "cpu":
        return str(environment["device"])
    return f"{environment['cores']} cores of {environment['cpu']}"


def describe(environment: dict[str, Any]) -> str:
    """Return one line for people.

    For instance `2 cores of Intel … (avx512f), 23.4 GiB, no GPU; Python 3.11.7, torch 2.15.0`.
    """
    gpu = environment["device"] if environment["device"] != "cpu" else "no GPU"
    sets = ", ".join(environment["isa"]) or "no vector extensions known"
    memory = environment["memory_bytes"] / 2**30
    return (
        f"{environment['cores']} cores of {environment['cpu']} ({sets}), {memory:.1f} GiB, {gpu}; "
        f"Python {environment['python']}, torch {environment['torch']}"
    )

"""Division of the machine among notebooks that run at the same time.

    python -m gallery_lib.notebooks.batch.shares 0,1 COMMAND …     COMMAND on the cores 0 and 1

A single notebook at a time has the whole machine. With more, each gets GPUs of its own, or else
cores of its own. They still share memory bandwidth, power and disk, which disturbs their
measurements. A request for more than the machine has is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gallery_lib.config import BatchConfig, TrainConfig
from gallery_lib.config.options import from_mapping
from gallery_lib.errors import InputError
from gallery_lib.system import hardware

CPU_ONLY = ("communication", "performance_data")
"""Notebooks that use no GPU, even where there are some."""


@dataclass(frozen=True)
class Share:
    """One job's part of the machine: a command-line prefix and environment variables.

    Both are empty for the whole machine.
    """

    prefix: list[str]
    environment: dict[str, str]


def _estimated_bytes(name: str, parameters: dict[str, object]) -> int:
    """Return the estimated peak memory of a task's notebook, with two variants alive.

    Returns 0 for a notebook that is not a task's.
    """
    from gallery_lib import tasks
    from gallery_lib.tasks import memory_estimate

    if name not in tasks.names():
        return 0
    sizes = ("batch_size", "image_size", "sequence_length")
    task = tasks.get(name)
    options = {
        **(task.full if parameters.get("profile") == "full" else task.quick),
        **{k: v for k, v in parameters.items() if v is not None},
    }
    config = from_mapping(
        TrainConfig, {"model": name, **{size: options[size] for size in sizes if size in options}}
    )
    return 2 * memory_estimate.needed_bytes(config, compared=True)


def check(config: BatchConfig, notebooks: Sequence[tuple[str, dict[str, object]]]) -> None:
    """Raise InputError if `config.jobs` notebooks need more than this host has.

    Devices and memory are checked.

    Args:
        config: options of the batch.
        notebooks: (name, parameters) of each notebook.
    """
    jobs, gibibyte, total = min(config.jobs, len(notebooks)), 2**30, hardware.memory_bytes()
    if config.memory_limit is not None and jobs * config.memory_limit * gibibyte > total:
        raise InputError(
            f"jobs={jobs} × memory_limit={config.memory_limit} GiB: this host has "
            f"{total / gibibyte:.1f} GiB of memory.",
            parameter="memory_limit",
        )
    if jobs == 1:
        return  # without counting GPUs, which would import torch
    gpus = hardware.gpu_count()
    devices, what = (
        (gpus, f"{gpus} GPU(s)")
        if gpus
        else (hardware.cores(), f"{hardware.cores()} CPU core(s) and no GPU")
    )
    if jobs > devices:
        raise InputError(
            f"jobs={jobs}: this host has {what}, so at most {devices} notebooks at a time.",
            parameter="jobs",
        )
    if gpus == 0 and config.memory_limit is None:
        needed = sum(
            sorted(_estimated_bytes(name, parameters) for name, parameters in notebooks)[-jobs:]
        )
        if needed > total:
            raise InputError(
                f"jobs={jobs}: the {jobs} largest of these notebooks need about "
                f"{needed / gibibyte:.1f} GiB of memory together, and this host has "
                f"{total / gibibyte:.1f}. Run fewer at a time.",
                parameter="jobs",
            )


def shares(jobs: int) -> list[Share]:
    """Return one share per job: consecutive GPUs or cores, divided as evenly as possible."""
    if jobs == 1:
        return [Share([], {})]
    gpus = hardware.gpu_count()
    visible = (
        os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if os.environ.get("CUDA_VISIBLE_DEVICES")
        else [str(i) for i in range(gpus)]
    )
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    result = []
    for job in range(jobs):
        mine = cores[job * len(cores) // jobs : (job + 1) * len(cores) // jobs]
        devices = visible[job * gpus // jobs : (job + 1) * gpus // jobs]
        prefix = [sys.executable, "-m", "gallery_lib.notebooks.batch.shares", ",".join(mine)]
        result.append(Share(prefix, {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if gpus else {}))
    return result


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
    os.execvp(sys.argv[2], sys.argv[2:])

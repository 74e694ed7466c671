"""Estimate of a run's host memory, so that a run that cannot fit says so before it starts.

Weights, gradients and optimizer state are estimated from the number of parameters. With several
processes the buckets that gradients are sent in are added. Activations come from what a task
declares per sample at its own size, in fp32: the bytes that autograd keeps between forward and
backward, and the largest of them once more. The gradient of the largest comes while most is still
there (a language model's logits).

A process that is being compared keeps a copy of its weights for a while. Rank 0 of a run that saves
checkpoints keeps a copy of weights and optimizer states. On a GPU a run of half precision takes
less than is estimated.
"""

from __future__ import annotations

import dataclasses

import psutil

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.system import hardware
from gallery_lib.system.processes import tell
from gallery_lib.tasks import SIZES, get, of, with_sizes

PROCESS_BYTES = 800 * 2**20  # Python, torch and the libraries of the models
# Values per parameter that the optimizer keeps; others keep two moments.
_STATES = {"SGD": 1, "Adagrad": 1}
_RESERVE = 0.05  # of the memory, for everything else


class DoesNotFit(InputError):
    """Error: the processes of a run need more memory than is free on this host."""


def needed_bytes(config: TrainConfig, processes: int = 1, *, compared: bool = False) -> int:
    """Return the estimated peak memory of one of `processes` training processes, in bytes.

    `compared` says that the process is a run that is being compared.
    """
    task, config = of(config), with_sizes(config)
    assert config.batch_size is not None
    scale = 1.0
    if task.image_size and config.image_size:
        scale = (config.image_size / task.image_size) ** 2
    elif task.sequence_length and config.sequence_length:
        scale = config.sequence_length / task.sequence_length
    states = _STATES.get(task.optimizer.name, 2)
    # 3: weights, gradients, one temporary
    values = 3.0 + states + (processes > 1) + compared
    if config.checkpoint_every is not None:  # see checkpoint/training.py
        values += (1 + states) / processes
    return int(
        PROCESS_BYTES
        + 4 * values * (task.parameters or 0)
        + scale * config.batch_size * task.activation_bytes_per_sample
    )


def free_bytes() -> float:
    """Return how many bytes of this host's memory runs may use now."""
    memory = hardware.memory_bytes()
    return min(psutil.virtual_memory().available, memory) - _RESERVE * memory


def check(config: TrainConfig, processes: int, *, compared: int = 0) -> None:
    """Raise DoesNotFit when the processes of a run need more memory than this host has free.

    `processes` is the number of processes of a run, `compared` the number of runs that are compared
    at once. Nothing is checked on a host with GPUs.
    """
    if hardware.gpu_count():
        return
    free = free_bytes()
    needed = max(compared, 1) * processes * needed_bytes(config, processes, compared=bool(compared))
    if needed <= free:
        return
    sized = with_sizes(config)
    names = (*SIZES, "checkpoint_every")
    sizes = [f"{name}={value}" for name in names if (value := getattr(sized, name))]
    raise DoesNotFit(
        f"{config.model} with {', '.join(sizes)} on {processes} process(es) needs about "
        f"{needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free on this host. "
        "Choose smaller sizes, fewer processes, or a larger machine."
    )


def halved(config: TrainConfig) -> TrainConfig | None:
    """Return the run with half its batch, in whole items; None where that is less than one."""
    item, size = get(config.model).samples_per_item, with_sizes(config).batch_size or 0
    items = size // item // 2
    return dataclasses.replace(config, batch_size=items * item) if items else None


def fitting(config: TrainConfig) -> TrainConfig:
    """Return the run with as large a batch, by halves, as two variants have GPU memory for.

    A smaller batch than that of `config` is told in a line. Without a GPU nothing changes.
    """
    gpus, result = hardware.visible_gpus(), config
    room = (1 - _RESERVE) * min((gpu.memory_bytes for gpu in gpus), default=0)
    while gpus and 2 * needed_bytes(result, compared=True) > room and (half := halved(result)):
        result = half
    if result is not config:
        needed, size = 2 * needed_bytes(config, compared=True), with_sizes(config).batch_size
        tell(
            f"{config.model}: batch_size={result.batch_size}, since two variants with {size} need "
            f"about {needed / 2**30:.0f} GiB, and the GPU has {room / 2**30:.0f}."
        )
    return result

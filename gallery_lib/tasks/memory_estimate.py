"""How much host memory a run needs, so that one that cannot fit says so before it starts.

    python -m gallery_lib.tasks.memory_estimate NAME     activation bytes per sample, for the task's declaration

An estimate: weights, gradients (with several processes also the buckets that they are sent in) and optimizer state
from the number of parameters, activations from what a task declares per sample at its own size, in fp32: the bytes
that autograd keeps between forward and backward, and the largest of them once more, since its gradient comes while most is still
there (a language model's logits). The command above counts them. A process that is being compared keeps
a copy of its weights for a while. GPUs are not asked about their memory: that would initialise CUDA in the wrong process.
"""

from __future__ import annotations

import sys
from typing import Any

import psutil
import torch
from torch import Tensor

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.system import hardware
from gallery_lib.tasks import Task, get, of, with_sizes

PROCESS_BYTES = 800 * 2**20  # Python, torch and the libraries of the models
_STATES = {
    "SGD": 1,
    "RMSprop": 2,
    "Adagrad": 1,
}  # values per parameter that the optimizer keeps; else two moments
_RESERVE = 0.05  # of the memory, for everything else


def activation_bytes(task: Task, batch: Any, samples: int) -> int:
    """Bytes per sample that a step over `batch`, which has `samples` samples, takes for activations, on the CPU."""
    model = task.build_model().train()
    own = {value.untyped_storage()._cdata for value in (*model.parameters(), *model.buffers())}
    kept: dict[
        int, Tensor
    ] = {}  # by storage; the tensors stay referenced, so that no storage is counted for another

    def keep(value: Tensor) -> Tensor:
        if value.untyped_storage()._cdata not in own:
            kept[value.untyped_storage()._cdata] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        task.loss(model, batch)
    sizes = [value.untyped_storage().nbytes() for value in kept.values()]
    return (sum(sizes) + max(sizes)) // samples


def needed_bytes(config: TrainConfig, processes: int = 1, *, compared: bool = False) -> int:
    """Estimated peak of one of `processes` training processes, which may be a run that is being compared."""
    task, config = of(config), with_sizes(config)
    assert config.batch_size is not None
    scale = 1.0
    if task.image_size and config.image_size:
        scale = (config.image_size / task.image_size) ** 2
    elif task.sequence_length and config.sequence_length:
        scale = config.sequence_length / task.sequence_length
    values = (
        3 + _STATES.get(task.optimizer.name, 2) + (processes > 1) + compared
    )  # weights, gradients, one temporary
    return int(
        PROCESS_BYTES
        + 4 * values * (task.parameters or 0)
        + scale * config.batch_size * task.activation_bytes_per_sample
    )


def free_bytes() -> float:
    """What runs may use of this host's memory now."""
    return (
        min(psutil.virtual_memory().available, hardware.memory_bytes())
        - _RESERVE * hardware.memory_bytes()
    )


def check(config: TrainConfig, processes: int, *, compared: int = 0) -> None:
    """InputError when `processes` processes do not fit into this host's free memory, or those of `compared` runs at once."""
    if hardware.gpu_count():
        return
    free = free_bytes()
    needed = max(compared, 1) * processes * needed_bytes(config, processes, compared=bool(compared))
    if needed <= free:
        return
    sized = with_sizes(config)
    sizes = [
        f"{name}={value}"
        for name in ("batch_size", "image_size", "sequence_length")
        if (value := getattr(sized, name))
    ]
    raise InputError(
        f"{config.model} with {', '.join(sizes)} on {processes} process(es) needs about {needed / 2**30:.1f} GiB of memory, and "
        f"{free / 2**30:.1f} GiB are free on this host. Choose smaller sizes, fewer processes, or a larger machine."
    )


def main(name: str) -> None:
    """Print what the task `name` should declare."""
    task = get(name)
    splits = task.data(with_sizes(TrainConfig(model=name)))
    data: Any = splits.train
    loader = torch.utils.data.DataLoader(
        data, batch_size=2, collate_fn=getattr(data, "collate", None)
    )
    batch = next(iter(loader))
    if hasattr(data, "finish_batch"):
        batch = data.finish_batch(batch, torch.contiguous_format)
    print(
        f"activation_bytes_per_sample={activation_bytes(task, batch, 2 * task.samples_per_item):_}"
    )


if __name__ == "__main__":
    main(sys.argv[1])

r"""Convergence test: does a network learn digits as well with each wire format as with fp32?

    python -m torch.distributed.run --nproc_per_node 2 \
        -m gallery_lib.measure.communication.convergence --seeds 8

A small network learns scikit-learn's digits: 1797 scans, 8 × 8 (Alpaydin and Kaynak, 1998). SGD
trains two layers with a learning rate that falls to 0, from the same seeds in every format. All of
it is one run: the same processes, which start once, measure everything that is compared. Noise is
how far two means over so many seeds lie apart by chance. It is two standard errors of their
difference, from the spread of fp32 over the seeds, and half a percent of fp32's mean at least. A
format whose mean is not further than that from fp32's is within the noise.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.config import Comm, ConvergenceConfig
from gallery_lib.measure.communication.launch import end_after, run_on_this_host
from gallery_lib.system.files import write_json

FP32 = "fp32"
FORMATS = {
    FP32: Comm(),
    "bf16": Comm(wire="bf16"),
    "fp16": Comm(wire="fp16"),
    "int8": Comm(wire="int8"),
}
# Number of the 1797 images that only measure the accuracy; the same images with every seed.
HELD_OUT = 597
# Sizes and learning rate of the training; images in a batch are those of one process.
HIDDEN, BATCH_SIZE, LEARNING_RATE = 128, 64, 0.5


@dataclass(frozen=True)
class Scores:
    """Held-out accuracy by wire format, a value for each seed."""

    by_format: dict[str, list[float]]

    def difference(self, wire: str) -> float:
        """Return the format's mean over the seeds, less that of fp32."""
        return statistics.mean(self.by_format[wire]) - statistics.mean(self.by_format[FP32])

    @property
    def noise(self) -> float:
        """Return how far means over as many seeds, at least two, lie apart by chance."""
        scores = self.by_format[FP32]
        spread = 2 * statistics.stdev(scores) * math.sqrt(2 / len(scores))
        return max(spread, 0.005 * abs(statistics.mean(scores)))

    def verdict(self, wire: str) -> str:
        """Return `within noise`, `better` or `worse`, in comparison with fp32."""
        if abs(self.difference(wire)) <= self.noise:
            return "within noise"
        return "better" if self.difference(wire) > 0 else "worse"


@functools.cache
def _data() -> tuple[Tensor, Tensor]:
    """Return images [1797, 64] from 0 to 1, and labels [1797]."""
    from sklearn.datasets import load_digits

    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    return images.float() / 16, labels


def accuracy(way: Comm, *, seed: int, epochs: int) -> float:
    """Train on all ranks, each on its share of every batch, and return the held-out accuracy.

    The accuracy is the same on every rank. The seed decides the weights and the order of the
    images. A collective call.
    """
    images, labels = _data()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(images.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    model = accelerate_ddp(nn.parallel.DistributedDataParallel(net), way)
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=epochs)
    world, rank = process_group.world_size(), process_group.rank()
    for _ in range(epochs):
        shuffled = training[torch.randperm(len(training), generator=generator)]
        for chunk in shuffled.split(BATCH_SIZE * world):
            own = chunk[rank::world]
            optimizer.zero_grad()
            F.cross_entropy(model(images[own]), labels[own]).backward()
            optimizer.step()
        schedule.step()
    accelerate_ddp(model, Comm())  # ends its threads
    with torch.no_grad():
        return (net(images[held_out]).argmax(1) == labels[held_out]).double().mean().item()


def measure(config: ConvergenceConfig) -> int:
    """Train in every format on the ranks of this run; rank 0 prints lines and writes the file."""
    process_group.ensure_initialized()
    by_format = {}
    for name, way in FORMATS.items():
        by_format[name] = [
            accuracy(way, seed=seed, epochs=config.epochs) for seed in range(config.seeds)
        ]
        if process_group.rank() == 0:
            values = ", ".join(f"{value:.3f}" for value in by_format[name])
            print(f"{name}: held-out accuracy {values}", flush=True)
    if process_group.rank() == 0 and config.out:
        write_json(Path(config.out), by_format)
    return 0


def measured(config: ConvergenceConfig, processes: int = 2) -> Scores:
    """Train in processes on this host; return the scores. RunFailed where a process fails."""
    return Scores(run_on_this_host(__name__, config, processes))


def main(arguments: Sequence[str]) -> None:
    """Run one process of the measurement, and end it."""
    end_after(measure, ConvergenceConfig, arguments, "convergence")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Training of a small network on scikit-learn's digits, on several ranks, with a given strategy.

The strategy averages the gradients. The data are 1797 scans of handwritten digits, 8 × 8 (Alpaydin
and Kaynak, 1998), real data that comes with the library. The network has two layers. SGD trains it
with a learning rate that falls to 0.

*Mixed units.* Each layer's biases lie in the last column of its weights, and are counted in units
that may be `bias_unit` times as large. The optimizer's step there is smaller by the square of that
factor. In exact arithmetic the training is the same in any unit.

But a bias's gradient is `bias_unit` times as large as before, and decides the scale of its group of
256 in int8. With 500, half of the smallest step of that scale is more than nearly all gradients of
weights. So these are rounded to 0 in every training step. Only error feedback, which remembers the
loss, learns then. So a broken error feedback shows here, which it does not in units that all
parameters share.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.config import Comm

MIXED_UNITS = 500.0
HELD_OUT = 597
"""Number of the 1797 images that only measure the accuracy; the same images with every seed."""
HIDDEN, BATCH_SIZE, LEARNING_RATE = 128, 64, 0.5
"""Sizes and learning rate of the training; images in a batch are those of one process."""


class Layer(nn.Module):
    """Linear layer with biases in the last column of its weights, in units of `bias_unit`.

    `weight` has the shape [outputs, inputs + 1]. Its initial values are those of nn.Linear.
    """

    def __init__(self, inputs: int, outputs: int, bias_unit: float) -> None:
        super().__init__()
        linear = nn.Linear(inputs, outputs)
        self.bias_unit = bias_unit
        self.weight = nn.Parameter(
            torch.cat([linear.weight.data, linear.bias.data[:, None] / bias_unit], 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, inputs] to [N, outputs]."""
        return F.linear(x, self.weight[:, :-1], self.bias_unit * self.weight[:, -1])


@functools.cache
def _data() -> tuple[Tensor, Tensor]:
    """Return images [1797, 64] from 0 to 1, and labels [1797]."""
    from sklearn.datasets import load_digits

    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    return images.float() / 16, labels


def accuracy(way: Comm, *, seed: int, epochs: int, bias_unit: float = 1.0) -> float:
    """Train on all ranks, each on its share of every batch, and return the held-out accuracy.

    The accuracy is the same on every rank. The seed decides the weights and the order of the
    images. A collective call.
    """
    images, labels = _data()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(
        Layer(images.shape[1], HIDDEN, bias_unit), nn.ReLU(), Layer(HIDDEN, 10, bias_unit)
    )
    model = accelerate_ddp(nn.parallel.DistributedDataParallel(net), way)
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=epochs)
    world, rank = process_group.world_size(), process_group.rank()
    for _ in range(epochs):
        for chunk in training[torch.randperm(len(training), generator=generator)].split(
            BATCH_SIZE * world
        ):
            own = chunk[rank::world]
            optimizer.zero_grad()
            F.cross_entropy(model(images[own]), labels[own]).backward()
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.grad[:, -1] /= bias_unit**2
            optimizer.step()
        schedule.step()
    accelerate_ddp(model, Comm())  # ends its threads
    with torch.no_grad():
        return (net(images[held_out]).argmax(1) == labels[held_out]).double().mean().item()

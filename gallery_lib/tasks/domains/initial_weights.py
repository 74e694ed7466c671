"""Initial weights that let runs be compared, and let a few dozen steps learn something.

*Small branches.* Goyal et al., "Accurate, Large Minibatch SGD", 2017, start the last batch norm of
each residual branch at zero, so that the network starts as its trunk. Here it starts at 0.1, which
leaves every parameter a gradient. The libraries' own start makes every branch as large as its
trunk. Rounding errors then double from block to block. Two correct runs part at once, and nothing
can be told from comparing them.

*Centred filters.* In a deep network without batch norm, each ReLU adds to what all samples have in
common, until they look alike to the last layers. Filters whose weights sum to zero take that out
again (Brock et al., "Characterizing signal propagation to close the performance gap in unnormalized
ResNets", 2021; there in every step, here at the start).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

BRANCH_SCALE = 0.1
# This gain keeps the variance through a ReLU, for weights without mean.
_RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))


def start_branches_small(scales: Iterable[Tensor]) -> None:
    """Fill each of `scales` with BRANCH_SCALE.

    `scales` are the weights of the batch norms that branches end with.
    """
    for scale in scales:
        nn.init.constant_(scale, BRANCH_SCALE)


@torch.no_grad()
def start_filters_centred(layers: Iterable[nn.Conv2d | nn.Linear]) -> None:
    """Draw the weights of `layers` from a normal distribution with mean zero per output.

    Each of the layers is followed by a ReLU. Biases are zero.
    """
    for layer in layers:
        # [outputs, inputs]; in place, since weights may be hundreds of megabytes
        weight = layer.weight.view(len(layer.weight), -1).normal_()
        weight.sub_(weight.mean(dim=1, keepdim=True)).mul_(_RELU_GAIN / math.sqrt(weight.shape[1]))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)

"""Initial weights at which rounding errors do not explode, so that two correct runs can be compared.

Goyal et al., "Accurate, Large Minibatch SGD", 2017, start the last batch norm of each residual branch at zero, so that
the network starts as its trunk. Here it starts at 0.1, which leaves every parameter a gradient. From the libraries' own
start, where every branch is as large as its trunk, rounding errors double from block to block, so that two correct runs
part at once and nothing can be told from comparing them.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

BRANCH_SCALE = 0.1


def start_branches_small(scales: Iterable[Tensor]) -> None:
    """Fill each of `scales`, the weights of the batch norms that branches end with, with BRANCH_SCALE."""
    for scale in scales:
        nn.init.constant_(scale, BRANCH_SCALE)

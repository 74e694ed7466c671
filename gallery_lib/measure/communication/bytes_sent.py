"""How many bytes the gradients of a model take on the wire, by format: counted from the shapes of its parameters.

What `comm/` sends is counted, without what TCP and the filling of buckets add. It is the network's part: what a format costs in
computation is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from gallery_lib.config import Comm
from gallery_lib.kernels.compression import packed_bytes

Shape = Sequence[int]


def shapes_of(model: nn.Module) -> list[tuple[int, ...]]:
    """Of all parameters that are trained."""
    return [tuple(parameter.shape) for parameter in model.parameters() if parameter.requires_grad]


def _low_rank_values(shape: Shape, rank: int) -> int:
    """Values that PowerSGD sends of a gradient of this shape: two narrow matrices, or all where these would not be smaller."""
    values = math.prod(shape)
    if len(shape) < 2:
        return values
    rows, columns = shape[0], values // shape[0]
    return min(values, min(rank, rows, columns) * (rows + columns))


def gradient_bytes(shapes: Sequence[Shape], options: Comm) -> int:
    """All gradients of a step once, in the format of `options`, where a model trains in fp32."""
    values = sum(math.prod(shape) for shape in shapes)
    if options.wire == "powersgd":
        return 4 * sum(_low_rank_values(shape, options.powersgd_rank) for shape in shapes)
    if options.wire == "int8":
        return packed_bytes(values, "int8")
    return (
        values
        * {"exact": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[
            options.wire
        ].itemsize
    )


def sent_bytes(shapes: Sequence[Shape], options: Comm, hosts: int, processes: int = 1) -> float:
    """What a host sends in a step, over `hosts` hosts of so many processes, and as much comes in.

    Each value is sent to where it is added up, and its sum is sent on: a ring over n ranks sends 2 (n - 1) / n of the gradients over
    each of its links (Patarasuk and Yuan, 2009), one of which leaves each host. Hierarchical ways have a ring over the hosts alone.
    int8, with several processes a host and not hierarchical, goes from every rank to every other instead of round.
    """
    ranks = hosts if options.hierarchical else hosts * processes
    ring = 2 * (ranks - 1) / ranks * gradient_bytes(shapes, options)
    if options.wire != "int8" or options.hierarchical:
        return ring
    to_its_place = (
        (ranks - processes) * processes / ranks
    )  # of what each of the host's ranks has, all but what stays on the host
    return (to_its_place + (ranks - 1) / ranks) * gradient_bytes(shapes, options)

"""Bytes that the gradients of a model take on the wire, by format, from its parameters' shapes.

What `comm/` sends is counted, without what TCP and the filling of buckets add. It is the network's
part: what a format costs in computation is not included.
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
    """Return the shapes of all parameters that are trained."""
    return [tuple(parameter.shape) for parameter in model.parameters() if parameter.requires_grad]


def _low_rank_values(shape: Shape, rank: int) -> int:
    """Return the number of values that PowerSGD sends of a gradient of this shape.

    It sends two narrow matrices, or all values where the matrices would not be smaller.
    """
    values = math.prod(shape)
    if len(shape) < 2:
        return values
    rows, columns = shape[0], values // shape[0]
    return min(values, min(rank, rows, columns) * (rows + columns))


def gradient_bytes(shapes: Sequence[Shape], options: Comm) -> int:
    """Return the bytes of all gradients of a step, once, in the format of `options`.

    The model trains in fp32.
    """
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
    """Return the bytes that a host sends in a step; as many come in.

    Each value is sent to where it is added up, and its sum is sent on. A ring over n ranks
    (Patarasuk and Yuan, 2009) sends 2 (n - 1) / n of the gradients over each of its links. One of
    these links leaves each host. Hierarchical strategies have a ring over the hosts alone. int8
    that is not hierarchical, with several processes a host, goes from every rank to every other
    instead of round a ring.

    Args:
        shapes: shapes of the gradients.
        options: how gradients are averaged.
        hosts: number of hosts.
        processes: number of processes on each host.
    """
    ranks = hosts if options.hierarchical else hosts * processes
    ring = 2 * (ranks - 1) / ranks * gradient_bytes(shapes, options)
    if options.wire != "int8" or options.hierarchical:
        return ring
    # Of what each of the host's ranks has, all but what stays on the host.
    to_its_place = (ranks - processes) * processes / ranks
    return (to_its_place + (ranks - 1) / ranks) * gradient_bytes(shapes, options)

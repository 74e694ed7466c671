"""Statistics of a batch: `gallery::batch_norm_statistics_`, and its parts for several processes.

The kernels use Welford's method in fp32, and merge in fp64 in a fixed order. In one process
`batch_norm_statistics_` does everything. With several, each has `batch_norm_partial`; after a
gather of (count, mean, squares), `batch_norm_combine_` merges them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels import batch_norm_cpp
from gallery_lib.kernels import batch_norm_launch as plan
from gallery_lib.kernels import batch_norm_reference as rules
from gallery_lib.kernels.batch_norm_buffers import in_channels_last, new_pair
from gallery_lib.kernels.batch_norm_reference import Running
from gallery_lib.kernels.runtime import launch
from gallery_lib.kernels.runtime.operators import Cpp, kernel_device, register


def _bump(*changed: Tensor | None) -> None:
    """Tell autograd which tensors were changed in place."""
    torch.autograd.graph.increment_version([tensor for tensor in changed if tensor is not None])


def _partial_kernel(x: Tensor) -> tuple[Tensor, Tensor]:
    x = in_channels_last(x)
    slabs = plan.slabs_of(x)
    parts, (mean, squares) = new_pair(x, slabs.count), new_pair(x)
    launch.run(plan.moments(x, slabs, *parts), x.device)
    launch.run(plan.combine(*parts, slabs, Running(), 0.0, mean, squares_of_all=squares), x.device)
    return mean, squares


def _partial_fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return new_pair(x)


register(
    "batch_norm_partial",
    "(Tensor x) -> (Tensor, Tensor)",
    reference=rules.partial,
    kernel=_partial_kernel,
    device=kernel_device,
    fake=_partial_fake,
    cpp=Cpp(batch_norm_cpp.takes_partial, batch_norm_cpp.partial),
)


def _combine_reference(
    counts: Tensor,
    means: Tensor,
    squares: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    momentum: float | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    result = rules.combine(
        counts, means, squares, Running(running_mean, running_var, batches, momentum), eps
    )
    _bump(running_mean, running_var)
    return result


def _combine_kernel(
    counts: Tensor, means: Tensor, squares: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    *running, eps = rest
    counts, means, squares = counts.contiguous(), means.contiguous(), squares.contiguous()
    mean, inverse_deviation = torch.empty_like(means[0]), torch.empty_like(means[0])
    kernel_launch = plan.combine(
        means, squares, counts, Running(*running), eps, mean, inverse_deviation=inverse_deviation
    )
    launch.run(kernel_launch, means.device)
    _bump(*running[:2])
    return mean, inverse_deviation


def _combine_device(counts: Tensor, means: Tensor, *_: Any) -> torch.device | None:
    return means.device if means.dtype is torch.float32 else None


def _combine_fake(counts: Tensor, means: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(means[0]), torch.empty_like(means[0])


register(
    "batch_norm_combine_",
    "(Tensor counts, Tensor means, Tensor squares, Tensor(a!)? running_mean, "
    "Tensor(b!)? running_var, Tensor? batches, float? momentum, float eps) -> (Tensor, Tensor)",
    reference=_combine_reference,
    kernel=_combine_kernel,
    device=_combine_device,
    fake=_combine_fake,
)


def _statistics_reference(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    momentum: float | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    if batches is not None:
        batches.add_(1)
        _bump(batches)
    mean, squares = rules.partial(x)
    counts = torch.full((1,), rules.rows(x), device=x.device)
    return _combine_reference(
        counts, mean[None], squares[None], running_mean, running_var, batches, momentum, eps
    )


def _statistics_kernel(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *running, eps = rest
    x = in_channels_last(x)
    slabs = plan.slabs_of(x)
    parts, (mean, inverse_deviation) = new_pair(x, slabs.count), new_pair(x)
    launch.run(plan.moments(x, slabs, *parts, running[2]), x.device)
    launch.run(
        plan.combine(
            *parts, slabs, Running(*running), eps, mean, inverse_deviation=inverse_deviation
        ),
        x.device,
    )
    _bump(*running[:3])
    return mean, inverse_deviation


register(
    "batch_norm_statistics_",
    "(Tensor x, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor(c!)? batches, "
    "float? momentum, float eps) -> (Tensor, Tensor)",
    reference=_statistics_reference,
    kernel=_statistics_kernel,
    device=kernel_device,
    fake=_partial_fake,
    cpp=Cpp(batch_norm_cpp.takes_statistics, batch_norm_cpp.statistics),
)

"""Registration of operators, the same for every one: `register`.

An operator `gallery::NAME` is one piece of work in several implementations. A kernel does it on
CUDA. The reference, plain torch, does it everywhere else: on the CPU, on a GPU that kernels are not
compiled for, and for dtypes that the kernel is not written for. Where it pays, C++ does it on the
CPU; some operators are for the CPU alone. Each call is counted under the implementation that did
the work, so that a run can report what it used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import usage
from gallery_lib.kernels.runtime.launch import ELEMENTS

KERNEL, PLAIN_TORCH = "own kernel", "plain torch"
_CALLS: Counter[tuple[str, str]] = Counter()
Implementation = Callable[..., Any]
"""Function that takes the operator's arguments by position, as the schema has them."""


@dataclass(frozen=True)
class Autograd:
    """Gradient of an operator.

    `keep(ctx, inputs, output)` keeps what `backward(ctx, *gradients)` needs.
    """

    keep: Callable[..., None]
    backward: Callable[..., Any]


def counts() -> Counter[tuple[str, str]]:
    """Return the calls in this process so far, by (operator, how)."""
    return _CALLS.copy()


def count_kernel(name: str) -> None:
    """Count a call of an operator's kernel that goes around the dispatcher."""
    _CALLS[name, KERNEL] += 1


def summary(since: Counter[tuple[str, str]]) -> str:
    """Return one line about the calls since `since` was taken.

    For instance `optimizer_step_ (own kernel, 12 calls), …`; '' where there were none.
    """
    new = _CALLS - since
    return ", ".join(
        f"{operator} ({how}, {number} call{'s' if number > 1 else ''})"
        for (operator, how), number in sorted(new.items())
    )


def register(
    name: str,
    schema: str,
    *,
    reference: Implementation,
    kernel: Implementation | None = None,
    device: Callable[..., torch.device | None] | None = None,
    fake: Implementation,
    cpp: Implementation | None = None,
    takes_cpp: Callable[..., bool] | None = None,
    autograd: Autograd | None = None,
) -> None:
    """Register `gallery::<name>`, which is called as `torch.ops.gallery.<name>`.

    All functions take the operator's arguments by position.

    Args:
        name: the operator's name; it ends in `_` where arguments are changed in place.
        schema: arguments and results, as in `torch.library.define`.
        reference: plain torch.
        kernel: enqueues the launches on CUDA, returns the results, and never waits for the device.
        device: the arguments' device, or None where the kernel is not written for their dtypes.
        fake: returns results without values, for tracing.
        cpp: C++ on the CPU.
        takes_cpp: whether it takes these arguments.
        autograd: the gradient.
    """
    assert (cpp is None) == (takes_cpp is None) and (kernel is None) == (device is None), name

    def on_cpu(*arguments: Any) -> Any:
        if cpp is not None and takes_cpp is not None and takes_cpp(*arguments):
            _CALLS[name, KERNEL] += 1
            return cpp(*arguments)
        _CALLS[name, PLAIN_TORCH] += 1
        return reference(*arguments)

    def on_cuda(*arguments: Any) -> Any:
        assert kernel is not None and device is not None
        place = device(*arguments)
        if place is None or not usage.kernels_run(place):
            _CALLS[name, PLAIN_TORCH] += 1
            return reference(*arguments)
        _CALLS[name, KERNEL] += 1
        return kernel(*arguments)

    qualified = f"gallery::{name}"
    torch.library.define(qualified, schema)
    torch.library.impl(qualified, "cpu", on_cpu)
    if kernel is not None:
        torch.library.impl(qualified, "cuda", on_cuda)
    torch.library.register_fake(qualified, fake)
    if autograd is not None:
        torch.library.register_autograd(qualified, autograd.backward, setup_context=autograd.keep)


def kernel_device(tensor: Tensor, *_: Any) -> torch.device | None:
    """Return the tensor's device, or None where no kernel is compiled for its dtype.

    It is the `device` of an operator whose first argument decides.
    """
    return tensor.device if tensor.dtype in ELEMENTS else None

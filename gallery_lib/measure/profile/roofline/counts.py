"""Work of one training step, operator by operator: calls, bytes and FLOPs.

A dispatch mode sees every operator that runs, those that compiled code calls as well. It does not
see kernels that the compiler generated (`generated`), and the optimizer is counted from its
tensors: a fused one is no operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gallery_lib.measure.profile.roofline import formulas


class Operation(NamedTuple):
    """An operator with the shapes of its tensors: what is counted and timed as one."""

    name: str
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass
class Work:
    """Work of all calls of an operation in a step."""

    calls: int = 0
    bytes: int = 0
    flops: int = 0
    dtype: str | None = None  # that the FLOPs are done in

    def add(self, moved: int, flops: int, dtype: str | None) -> None:
        """Add one call."""
        self.calls += 1
        self.bytes += moved
        self.flops += flops
        self.dtype = dtype or self.dtype


class Counts(TorchDispatchMode):
    """Dispatch mode that counts in `work` what the operators inside it do."""

    def __init__(self) -> None:
        super().__init__()
        self.work: dict[Operation, Work] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run under this mode as it is."""
        return True

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and count it."""
        named = kwargs or {}
        # In-place operators may change strides, so shapes are read first.
        operation = Operation(operator._schema.name, _shapes(operator, args, named))
        out = operator(*args, **named)
        if not formulas.moves_nothing(operator):
            flops = formulas.call_flops(operator, args, named, out)
            self.work.setdefault(operation, Work()).add(
                formulas.call_bytes(operator, args, named, out),
                flops,
                _dtype(args) if flops else None,
            )
        return out


def _shapes(operator: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the tensors among the arguments, as torch's profiler has them."""
    values = (value for _, value in formulas.arguments(operator, args, kwargs))
    return tuple(tuple(v.shape) for v in values if isinstance(v, Tensor) and v.dim())


def _dtype(args: Any) -> str | None:
    floating = (a for a in args if isinstance(a, Tensor) and a.is_floating_point())
    return next((str(a.dtype).removeprefix("torch.") for a in floating), None)


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's step in one pass over memory.

    Gradients are read, weights and states are read and written. An optimizer that goes over them
    more often moves more.
    """
    total = 0
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is None:
                continue
            total += formulas.tensor_bytes(weight.grad)
            states = [
                value
                for value in optimizer.state.get(weight, {}).values()
                if isinstance(value, Tensor) and value.dim()
            ]
            total += 2 * sum(map(formulas.tensor_bytes, [weight.detach(), *states]))
    return total

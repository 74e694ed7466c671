"""Float64 form of a model, which computes the reference that variants are compared with."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def widen(model: nn.Module) -> None:
    """Convert the model to float64 in place, and have its calls convert floating-point inputs."""
    model.double()

    def to_float64(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        def widened(value: Any) -> Any:
            return (
                value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
            )

        return tuple(widened(a) for a in args), {k: widened(v) for k, v in kwargs.items()}

    model.register_forward_pre_hook(to_float64, with_kwargs=True)

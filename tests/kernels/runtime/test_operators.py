"""`register` gives an operator its implementations, and counts which of them did the work."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from cuda_on_host.device import on
from torch import Tensor

from gallery_lib.kernels.runtime import operators, usage
from gallery_lib.kernels.runtime.operators import Autograd, Cpp, kernel_device, register

_NUMBERS = itertools.count()


def keep(ctx, inputs, output: Tensor) -> None:
    ctx.factor = inputs[1]


def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
    return gradient * ctx.factor, None


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that registers x · factor; each implementation adds a number of its own."""
    monkeypatch.setattr(usage, "kernels_run", lambda device: True)

    def name_of_operator(**more) -> str:
        name = f"test_of_register_{next(_NUMBERS)}"
        register(
            name,
            "(Tensor x, float factor) -> Tensor",
            reference=lambda x, factor: x * factor,
            kernel=lambda x, factor: x * factor + 100,
            device=kernel_device,
            fake=lambda x, factor: torch.empty_like(x),
            **more,
        )
        return name

    return name_of_operator


def outcome(device: str, name: str, x: Tensor, factor: float) -> tuple[float, str]:
    """Return the value that a call gives, and how the call was counted."""
    before = operators.counts()
    value = on(device, name, x, factor).item()
    ((counted_name, how),) = operators.counts() - before
    assert counted_name == name
    return value, how


def test_the_reference_runs_on_the_cpu_and_the_kernel_on_cuda(scaled) -> None:
    name, x = scaled(), torch.tensor(3.0)
    assert outcome("CPU", name, x, 2.0) == (6, operators.PLAIN_TORCH)
    assert outcome("CUDA", name, x, 2.0) == (106, operators.KERNEL)


def test_the_reference_runs_on_cuda_where_kernels_do_not(scaled, monkeypatch) -> None:
    name, x = scaled(), torch.tensor(3.0)
    assert outcome("CUDA", name, x.double(), 2.0) == (6, operators.PLAIN_TORCH)
    monkeypatch.setattr(usage, "kernels_run", lambda device: False)
    assert outcome("CUDA", name, x, 2.0) == (6, operators.PLAIN_TORCH)


def test_cpp_runs_on_the_cpu_for_what_it_takes(scaled) -> None:
    cpp = Cpp(takes=lambda x, factor: factor > 0, run=lambda x, factor: x * factor + 10)
    name, x = scaled(cpp=cpp), torch.tensor(3.0)
    assert outcome("CPU", name, x, 2.0) == (16, operators.KERNEL)
    assert outcome("CPU", name, x, -2.0) == (-6, operators.PLAIN_TORCH)
    assert outcome("CUDA", name, x, 2.0) == (106, operators.KERNEL)


def test_tracing_and_the_gradient_are_registered_too(scaled) -> None:
    operator = getattr(torch.ops.gallery, scaled(autograd=Autograd(keep, backward)))
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    torch.library.opcheck(operator, (x, 2.0))
    (gradient,) = torch.autograd.grad(operator(x, 2.0).sum(), x)
    assert gradient.tolist() == [2, 2]

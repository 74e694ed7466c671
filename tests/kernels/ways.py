"""The ways an operator does its work: kernels on the host, C++, and kernels on a device.

A test of an operator is written once and runs in each way. Its reference is the operator itself on
float64, where plain torch does the work.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cuda_on_host.device import GuardedMemory, HostDevice
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from gallery_lib.kernels.runtime import operators
from gallery_lib.kernels.runtime.launch import ELEMENTS


class OnHost(HostDevice):
    """Kernels on the CPU, in the shim."""

    dtypes = tuple(ELEMENTS)


class InCpp(GuardedMemory):
    """C++ on the CPU, on memory between guard pages; the order of threads means their number."""

    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)

    def __init__(self, schedule: int = 0, offset: int | None = None) -> None:
        super().__init__()
        self.threads = 1 + schedule % 3

    def call(self, name: str, *arguments: Any) -> Any:
        before, threads = operators.counts(), torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            result = in_plain_form(name, *arguments)
        finally:
            torch.set_num_threads(threads)
        if tensors_in(arguments)[0].numel():
            assert {how for _, how in operators.counts() - before} == {operators.KERNEL}
        self.check()
        return result


class OnDevice:
    """Kernels on a CUDA device. What is changed in place comes back into the tensors given."""

    dtypes = tuple(ELEMENTS)

    def __init__(self, schedule: int = 0, offset: int | None = None) -> None:
        """Leave order and places to the device."""

    def take(self, values: Tensor, offset: int | None = None) -> Tensor:
        return values.clone()

    def new(self, *shape: int, dtype: torch.dtype, offset: int | None = None) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def call(self, name: str, *arguments: Any) -> Any:
        given = moved(arguments, torch.cuda.current_device())
        before = operators.counts()
        result = in_plain_form(name, *given)
        assert {how for _, how in operators.counts() - before} == {operators.KERNEL}
        if name.endswith("_"):
            for ours, theirs in zip(tensors_in(arguments), tensors_in(given), strict=True):
                ours.copy_(theirs)
        return moved(result, "cpu")


def in_plain_form(name: str, *arguments: Any) -> Any:
    return getattr(torch.ops.gallery, name)(*arguments)


def tensors_in(arguments: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]


def moved(arguments: Any, device: torch.device | str | int, leaves: bool = True) -> Any:
    """Return arguments with their tensors on a device, as leaves unless without gradients."""

    def move(value: Tensor) -> Tensor:
        return value.detach().to(device).requires_grad_(value.requires_grad and leaves)

    return tree_map_only(Tensor, move, arguments)


ON_HOST = pytest.param(OnHost, id="host")
IN_CPP = pytest.param(InCpp, id="cpp")
ON_DEVICE = pytest.param(OnDevice, id="device", marks=pytest.mark.gpu)
KERNELS = pytest.mark.parametrize("way", [ON_HOST, ON_DEVICE])
EVERY_WAY = pytest.mark.parametrize("way", [ON_HOST, IN_CPP, ON_DEVICE])
ON_THE_CPU = pytest.mark.parametrize("way", [ON_HOST, IN_CPP])

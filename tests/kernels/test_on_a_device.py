"""Every kernel on a CUDA device, each call held once against float64.

Tensors begin at odd places of memory that is NaN elsewhere; new memory is NaN until it is written.
For compute-sanitizer, with PYTORCH_NO_CUDA_MEMORY_CACHING=1, memory ends with its tensor.
"""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from kernels import calls
from kernels.ways import in_plain_form, tensors_in
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from gallery_lib.kernels.runtime import launch, nvrtc, operators

BEFORE = 64
BEHIND = 0 if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") else 64
LARGEST_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.int8: 1e-2, torch.int64: 0.0}
"""Norm of the error over that of the result, by the dtype of the result; int8 is packed."""


def takes_a_list(source):
    return "#define TENSORS" in "".join(nvrtc.source_with_includes(source).values())


@pytest.fixture(scope="module")
def all_compiled():
    """Compile all sources at the same time; let torch fill new memory with NaN."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: kernels are launched on it")
    sources = sorted(path.name for path in nvrtc.SOURCES.glob("*.cu"))
    dtypes = [launch.ELEMENTS[dtype] for dtype in (torch.float32, torch.bfloat16)]
    device = torch.device("cuda", 0)
    many = ("TENSORS", str(launch.tensors_of_a_launch(device)))
    variants = [
        (source, (*defines, many) if takes_a_list(source) else defines, launch.architecture(device))
        for source, defines in itertools.product(sources, dtypes)
    ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(launch.compiled, *zip(*variants, strict=True)))
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def in_float64(value):
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_floating_point() else value.clone()
    return torch.float64 if isinstance(value, torch.dtype) else value


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("family", calls.IN_CUDA, ids=lambda family: family.__name__)
def test_a_kernel_gives_what_float64_gives(family, offset, all_compiled, cuda_kernels):
    torch.manual_seed(0)
    for name, arguments in family():
        places = []

        def placed(value: Tensor, places=places) -> Tensor:
            size = value.element_size()
            aligned = family is calls.packing and value.dtype is torch.uint8  # by contract
            first = BEFORE + (0 if aligned else offset)
            count = first + value.numel() + BEHIND
            memory = torch.full((count * size,), 0xFF, dtype=torch.uint8, device=cuda_kernels)
            places.append((memory, first * size, (first + value.numel()) * size))
            copy = memory.view(value.dtype).as_strided(value.size(), value.stride(), first)
            return copy.copy_(value.detach())

        given, before = tree_map_only(Tensor, placed, arguments), operators.counts()
        found = tensors_in((in_plain_form(name, *given), given))
        assert {how for _, how in operators.counts() - before} == {operators.KERNEL}
        wide = tree_map(in_float64, arguments)
        exact = tensors_in((in_plain_form(name, *wide), wide))
        for ours, theirs in zip(found, exact, strict=True):
            if ours.dtype is torch.uint8:
                ours, theirs = ours.view(torch.int8), theirs.view(torch.int8)
            largest = LARGEST_ERROR[ours.dtype] * theirs.double().norm().clamp(min=1e-3)
            assert (ours.cpu().double() - theirs.double()).norm() <= largest, name
        for memory, first, last in places:
            assert (torch.cat([memory[:first], memory[last:]]) == 0xFF).all(), name

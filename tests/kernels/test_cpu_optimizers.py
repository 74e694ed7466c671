"""The C++ optimizer steps refuse what they are not written for, and change nothing then."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels import cpu_optimizers
from gallery_lib.kernels.runtime import cpu_tensors


def shrunk() -> Tensor:
    tensor = torch.ones(6)
    tensor.untyped_storage().resize_(20)
    return tensor


def without_memory() -> Tensor:
    tensor = torch.ones(6)
    tensor.untyped_storage().resize_(0)
    return tensor


def shifted() -> Tensor:
    return torch.frombuffer(bytearray(25), dtype=torch.float32, offset=1)


WRONG: dict[str, tuple[Callable[[], Tensor], str]] = {
    "dtype": (
        lambda: torch.ones(6, dtype=torch.float64),
        r"torch.float64 .* another dtype than this step is written for",
    ),
    "16 bits": (lambda: torch.ones(6, dtype=torch.bfloat16), "another dtype"),
    "shape": (lambda: torch.ones(7), "its shape does not fit the others'"),
    "smaller": (lambda: torch.ones(5), "its shape does not fit the others'"),
    "dimensions": (lambda: torch.ones(6, 1), "its shape does not fit the others'"),
    "gaps": (lambda: torch.ones(12)[::2], r"strides \(2,\): it has gaps"),
    "expanded": (lambda: torch.ones(1).expand(6), "elements that share memory"),
    "too little": (shrunk, "less memory than its shape asks for"),
    "no memory": (without_memory, "it has no memory"),
    "unaligned": (shifted, "no multiple of its element size"),
}
NAMES = ("weights", "gradients", "averages", "squares")


def step(columns: list[list[Tensor]], **options: Any) -> None:
    steps = [1.0] * len(columns[0])
    values = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "maximize": False}
    cpu_optimizers.adam_(*columns, steps, decoupled_weight_decay=False, **values | options)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("column", range(4))
def test_a_tensor_that_does_not_suit_is_named(wrong: str, column: int) -> None:
    make, message = WRONG[wrong]
    columns = [[torch.ones(6), torch.ones(6)] for _ in range(4)]
    columns[column][1] = make()
    if column == 0 and wrong in ("shape", "smaller", "dimensions"):
        name = "gradients"  # it is a weight that others are held against
    else:
        name = NAMES[column]
    with pytest.raises(InputError, match=rf"adam's step does not take {name}\[1\], .*{message}"):
        step(columns)
    assert all(bool((each[0] == 1).all()) for each in columns)


def test_layouts_have_to_agree() -> None:
    columns = [[torch.ones(2, 3)] for _ in range(4)]
    columns[2] = [torch.ones(3, 2).t()]
    with pytest.raises(
        InputError,
        match=r"averages, torch.float32 \(2, 3\) with strides \(1, 2\): its layout differs",
    ):
        step(columns)
    step([[torch.ones(3, 2).t()] for _ in range(4)])
    step(
        [
            [torch.ones(1, 3, 1).as_strided((1, 3, 1), strides)]
            for strides in ((3, 1, 1), (7, 1, 9), (3, 1, 5), (0, 1, 0))
        ]
    )


@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 3), (2, 3)])
def test_what_is_written_is_no_other_tensors_memory(pair: tuple[int, int]) -> None:
    memory = torch.ones(10)
    columns = [[torch.ones(6)] for _ in range(4)]
    columns[pair[0]], columns[pair[1]] = [memory[:6]], [memory[4:]]
    with pytest.raises(
        cpu_tensors.Refused, match="it shares memory with another tensor of this step"
    ) as refused:
        step(columns)
    assert refused.value.reason == cpu_tensors.OVERLAP
    assert pickle.loads(pickle.dumps(refused.value)).reason == cpu_tensors.OVERLAP
    assert bool((memory == 1).all())


def test_gradients_may_share_memory_and_neighbours_may_touch() -> None:
    memory, gradient = torch.ones(12), torch.ones(6)
    states = [[torch.ones(6), torch.ones(6)] for _ in range(2)]
    step([[memory[:6], memory[6:]], [gradient, gradient], *states])
    assert bool((memory != 1).all()) and bool((memory == memory[0]).all())


def test_columns_and_rows_have_to_be_complete() -> None:
    columns = [[torch.ones(6)] for _ in range(4)]
    with pytest.raises(ValueError, match="zip"):
        cpu_optimizers.sgd_(
            [torch.ones(6)],
            [],
            None,
            lr=0.1,
            weight_decay=0.0,
            momentum=0.0,
            nesterov=False,
            maximize=False,
        )
    with pytest.raises(InputError, match="the arguments do not fit together"):
        cpu_optimizers.adam_(
            *columns,
            [],
            lr=0.1,
            betas=(0.9, 0.99),
            eps=0.0,
            weight_decay=0.0,
            decoupled_weight_decay=False,
            maximize=False,
        )
    step([[], [], [], []])


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_other_layouts_and_devices_are_refused_in_python() -> None:
    plain = torch.ones(2, 3)
    for tensor in (plain.to_sparse(), plain.to_sparse_csr(), plain.to("meta")):
        with pytest.raises(InputError, match="C\\+\\+ on the CPU takes strided tensors there; got"):
            step([[torch.ones(2, 3)], [tensor], [torch.ones(2, 3)], [torch.ones(2, 3)]])

"""The C++ optimizer steps refuse what they are not written for, and change nothing then."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusal import refused
from torch import Tensor

from gallery_lib.kernels import cpu_optimizers
from gallery_lib.kernels.runtime import cpp


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


WRONG: dict[str, tuple[Callable[[], Tensor], list[str]]] = {
    "dtype": (
        lambda: torch.ones(6, dtype=torch.float64),
        ["torch.float64", "another dtype"],
    ),
    "16 bits": (lambda: torch.ones(6, dtype=torch.bfloat16), ["torch.bfloat16", "another dtype"]),
    "shape": (lambda: torch.ones(7), ["shape"]),
    "smaller": (lambda: torch.ones(5), ["shape"]),
    "dimensions": (lambda: torch.ones(6, 1), ["shape"]),
    "gaps": (lambda: torch.ones(12)[::2], ["strides (2,)", "gaps"]),
    "expanded": (lambda: torch.ones(1).expand(6), ["elements that share memory"]),
    "too little": (shrunk, ["less memory"]),
    "no memory": (without_memory, ["no memory"]),
    "unaligned": (shifted, ["multiple of its element size"]),
}
NAMES = ("weights", "gradients", "averages", "squares")


def step(columns: list[list[Tensor]], **options: Any) -> None:
    steps = [1.0] * len(columns[0])
    values = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "maximize": False}
    cpu_optimizers.adam_(*columns, steps, decoupled_weight_decay=False, **values | options)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("column", range(4))
def test_a_tensor_that_does_not_suit_is_named(wrong: str, column: int) -> None:
    make, values = WRONG[wrong]
    columns = [[torch.ones(6), torch.ones(6)] for _ in range(4)]
    columns[column][1] = make()
    if column == 0 and wrong in ("shape", "smaller", "dimensions"):
        name = "gradients"  # it is a weight that others are held against
    else:
        name = NAMES[column]
    with refused(name, f"{name}[1], ", *values):
        step(columns)
    assert all(bool((each[0] == 1).all()) for each in columns)


def test_layouts_have_to_agree() -> None:
    columns = [[torch.ones(2, 3)] for _ in range(4)]
    columns[2] = [torch.ones(3, 2).t()]
    with refused("averages", "(2, 3) with strides (1, 2)", "layout"):
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
    with refused(NAMES[max(pair)], "shares memory", error=cpp.Refused) as raised:
        step(columns)
    assert raised.value.reason == cpp.OVERLAP
    assert pickle.loads(pickle.dumps(raised.value)).reason == cpp.OVERLAP
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
    with refused("weights", "do not fit together"):
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
        with refused("tensors", str(tensor.layout), str(tensor.device)):
            step([[torch.ones(2, 3)], [tensor], [torch.ones(2, 3)], [torch.ones(2, 3)]])

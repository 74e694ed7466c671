"""The C++ refuses tensors that it is not written for by name, and writes nothing then.

One table of calls, each with tensors that fit; each tensor is spoiled in every way.
"""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusal import refused
from torch import Tensor

from gallery_lib.kernels import (
    batch_norm,
    compression,
    cpu_optimizers,
    cross_entropy,
    max_pool,
    mixed_product,
    winograd,
)
from gallery_lib.kernels.runtime import cpp

BYTES, TWO = compression.packed_bytes(300), [2, 2]


def adam(*tensors: Tensor, steps: int = 2) -> None:
    """Take a step of two rows, the first of which fits."""
    rows = [[torch.ones(6), tensor] for tensor in tensors]
    values = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "maximize": False}
    cpu_optimizers.adam_(*rows, [1.0] * steps, decoupled_weight_decay=False, **values)  # type: ignore[arg-type]


def statistics(x: Tensor, mean: Tensor, second: Tensor, *running: Tensor) -> None:
    batch_norm.call_cpp("statistics", x, None, None, mean, second, None, None, *running)


def pool(function: str, *tensors: Tensor, stride: Any = TWO) -> None:
    max_pool.call_cpp(function, tensors, TWO, stride, [0, 0])


def pack(gradient: Tensor, out: Tensor, error: Tensor) -> None:
    torch.ops.gallery.pack_gradient_(gradient, error, out)


OF_LOSS = "logits 4,9 labels 4,i"
POOLED = "image 1,4,6,6 pooled 1,4,3,3 offsets 1,4,3,3,b"
CALLS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "adam": (adam, "weights 6 gradients 6 averages 6 squares 6", "weights averages squares"),
    "statistics": (
        statistics, "x 2,4,3,3 mean 4 second 4 first 4 last 4", "mean second first last",
    ),
    "normalise": (
        lambda x, *rest: batch_norm.call_cpp("forward", x, None, *rest),
        "x 2,4,3,3 written 2,4,3,3 mean 4 second 4 weight 4 bias 4", "written",
    ),
    "gradient of normalise": (
        partial(batch_norm.call_cpp, "gradient"),
        "x 2,4,3,3 gradient 2,4,3,3 written 2,4,3,3 mean 4 second 4 weight 4 bias 4 first 4 last 4",
        "written first last",
    ),
    "loss": (
        lambda *tensors: cross_entropy.call_cpp("forward", 0.0, -100, tensors),
        f"{OF_LOSS} loss 4 log_sum 4", "loss log_sum",
    ),
    "gradient of loss": (
        lambda *tensors: cross_entropy.call_cpp("backward", 0.0, -100, tensors),
        f"{OF_LOSS} log_sum 4 of_loss 4 gradient 4,9", "gradient",
    ),
    "max_pool": (partial(pool, "forward"), POOLED, "pooled offsets"),
    "gradient of max_pool": (partial(pool, "backward"), POOLED, "image"),
    "convolution": (
        lambda *tensors: winograd.convolve(tensors, False),
        "image 2,16,3,3 weight 32,16,3,3 result 2,32,3,3", "result",
    ),
    "gradient of convolution": (
        lambda *tensors: winograd.differentiate(tensors),
        "image 2,16,3,3 weight 32,16,3,3 result 2,32,3,3", "weight",
    ),
    "product": (
        lambda *tensors: mixed_product.multiply(tensors),
        "left 3,4 right 4,5 result 3,5 bias 5", "result",
    ),
    "products": (
        lambda *tensors: mixed_product.multiply(tensors, "exact_products"),
        "left 2,3,4 right 2,4,5 result 2,3,5", "result",
    ),
    "pack": (pack, f"gradient 300 out {BYTES},b error 300", "out error"),
    "accumulate": (
        lambda *both: torch.ops.gallery.accumulate_gradient_(*both, 1.0, True),
        f"sum 300 packed 2,{BYTES},b", "sum",
    ),
}  # fmt: skip
"""Functions; tensors by name, with sizes, `i` for int64, `b` for bytes; what of it is written."""
DTYPES = {"i": torch.int64, "b": torch.uint8}


def forms(name: str) -> dict[str, list[str]]:
    words = CALLS[name][1].split()
    return {column: sizes.split(",") for column, sizes in zip(words[::2], words[1::2], strict=True)}


def tensors_of(name: str) -> dict[str, Tensor]:
    """Return the tensors of a call; those of four sizes are in channels_last."""
    if name.startswith("product") and (reason := mixed_product.reason_not_available()):
        pytest.skip(reason)
    made = {}
    for column, form in forms(name).items():
        sizes = [int(size) for size in form if size not in DTYPES]
        made[column] = torch.ones(sizes, dtype=DTYPES.get(form[-1], torch.float32))
        if len(sizes) == 4:
            made[column] = made[column].contiguous(memory_format=torch.channels_last)
    return made


def of_another_dtype(tensor: Tensor) -> Tensor:
    return tensor.double()


def of_another_shape(tensor: Tensor) -> Tensor:
    """Return twice as many channels, rows or bytes, which no other tensor has."""
    dimension = 1 if tensor.dim() == 4 else -1 if tensor.dtype is torch.uint8 else 0
    last = torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
    return torch.cat([tensor, tensor], dimension).contiguous(memory_format=last)


def with_gaps(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor], -1)[..., 0]


def expanded(tensor: Tensor) -> Tensor:
    return tensor.clone().as_strided(tensor.shape, [0] * tensor.dim())


def cut_off(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(tensor.untyped_storage().nbytes() - 1)
    return tensor


def without_memory(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def unaligned(tensor: Tensor) -> Tensor:
    memory = bytearray(tensor.numel() * tensor.element_size() + 1)
    shifted = torch.frombuffer(memory, dtype=tensor.dtype, offset=1)
    return shifted.as_strided(tensor.shape, tensor.stride(), 0)


SPOILED: dict[Callable[[Tensor], Tensor], str] = {
    of_another_dtype: "another dtype",
    of_another_shape: "shape",
    with_gaps: "gaps",
    expanded: "elements that share memory",
    cut_off: "less memory",
    without_memory: "no memory",
    unaligned: "multiple of its element size",
}
NOT_WRONG = {
    # Plain torch takes gradients of other dtypes.
    ("pack", "gradient", of_another_dtype),
    ("accumulate", "sum", of_another_dtype),
    # The rows of ranks may lie apart, or be the same.
    ("accumulate", "packed", expanded),
}
CASES = [
    pytest.param(name, column, spoil, id=f"{name}-{column}-{spoil.__name__}")
    for name in CALLS
    for column, form in forms(name).items()
    for spoil in SPOILED
    if (name, column, spoil) not in NOT_WRONG and not (spoil is unaligned and form[-1] == "b")
]


def assert_untouched(tensors: dict[str, Tensor], but: str = "") -> None:
    assert all(name == but or bool((tensor == 1).all()) for name, tensor in tensors.items())


@pytest.mark.parametrize(("name", "column", "spoil"), CASES)
def test_a_tensor_that_does_not_fit_is_named(
    name: str, column: str, spoil: Callable[[Tensor], Tensor]
) -> None:
    tensors = tensors_of(name)
    tensors[column] = spoil(tensors[column])
    with pytest.raises(cpp.Refused, match=SPOILED[spoil]) as raised:
        CALLS[name][0](*tensors.values())
    if spoil is not of_another_shape:  # others are held against the first one's
        assert raised.value.parameter == column
    assert_untouched(tensors, but=column)


@settings(max_examples=2000, deadline=None)
@given(
    name=st.sampled_from([name for name in CALLS if not name.startswith("product")]),
    number=st.integers(1, 3),
    seed=st.integers(0, 2**20),
)
def test_several_wrong_tensors_are_refused_too(name: str, number: int, seed: int) -> None:
    draw, tensors = random.Random(seed), tensors_of(name)
    others = [case.values for case in CASES if case.values[2] is not of_another_shape]
    wrong = draw.sample([values[1:] for values in others if values[0] == name], number)
    for column, spoil in wrong:
        tensors[column] = spoil(tensors_of(name)[column])
    with pytest.raises(cpp.Refused):
        CALLS[name][0](*tensors.values())
    assert_untouched({name: t for name, t in tensors.items() if name not in dict(wrong)})


@pytest.mark.parametrize("name", CALLS)
def test_what_is_written_is_no_other_tensors_memory(name: str) -> None:
    columns = forms(name)
    for one, other in itertools.product(CALLS[name][2].split(), columns):
        if one == other or columns[one] != columns[other]:
            continue
        tensors = tensors_of(name)
        tensors[one] = tensors[other]
        with pytest.raises(cpp.Refused, match="shares memory with another") as raised:
            CALLS[name][0](*tensors.values())
        assert raised.value.parameter in (one, other)
        assert pickle.loads(pickle.dumps(raised.value)).reason == cpp.OVERLAP
        assert_untouched(tensors)


def test_layouts_of_a_row_have_to_agree_and_neighbours_may_touch() -> None:
    turned = torch.ones(3, 2).t()
    rows = [torch.ones(2, 3), torch.ones(2, 3), turned, torch.ones(2, 3)]
    with refused("averages", "(2, 3) with strides (1, 2)", "layout"):
        adam(*rows)
    adam(*[torch.ones(3, 2).t() for _ in range(4)])
    strides = ((3, 1, 1), (7, 1, 9), (3, 1, 5), (0, 1, 0))
    adam(*[torch.ones(1, 3, 1).as_strided((1, 3, 1), each) for each in strides])
    memory = torch.ones(9)
    adam(memory[:6], torch.ones(6), torch.ones(6), torch.ones(6))  # what is beside stays
    assert bool((memory[:6] != 1).all()) and bool((memory[6:] == 1).all())


def test_columns_rows_and_arguments_have_to_be_complete() -> None:
    with pytest.raises(ValueError, match="zip"):
        options = {"weight_decay": 0.0, "momentum": 0.0, "nesterov": False, "maximize": False}
        cpu_optimizers.sgd_([torch.ones(6)], [], None, lr=0.1, **options)  # type: ignore[arg-type]
    with refused("weights", "do not fit together"):
        adam(*[torch.ones(6) for _ in range(4)], steps=0)
    with refused("x", "do not fit together"):
        batch_norm.call_cpp("forward", tensors_of("normalise")["x"])
    with pytest.raises(cpp.Refused, match="the arguments do not fit together"):
        pool("forward", *tensors_of("max_pool").values(), stride=[0, 1])
    with pytest.raises(cpp.Refused, match="arguments do not fit"):
        CALLS["products"][0](*tensors_of("products").values(), torch.ones(5))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_other_layouts_and_devices_are_refused_in_python() -> None:
    plain = torch.ones(2, 3)
    for tensor in (plain.to_sparse(), plain.to_sparse_csr(), plain.to("meta")):
        with refused("tensors", str(tensor.layout), str(tensor.device)):
            adam(plain, tensor, torch.ones(2, 3), torch.ones(2, 3))


def test_a_part_that_is_read_by_all_ranks_is_taken() -> None:
    sums = torch.ones(300)
    torch.ops.gallery.accumulate_gradient_(
        sums, torch.zeros(1, BYTES, dtype=torch.uint8).expand(3, BYTES), 1.0, True
    )
    assert bool((sums == 1).all())

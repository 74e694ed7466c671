"""Bytes and FLOPs of a step are those that one counts by hand, backward passes included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gallery_lib.measure.profile.roofline.counts import Counts, Work, optimizer_bytes

FP32, BF16, INT64 = 4, 2, 8


def work_of(body: Callable[[], Any]) -> dict[str, Work]:
    """Return the work of what the body runs, by operator; an operator may have one shape here."""
    with Counts() as counter:
        body()
    names = [operation.name.removeprefix("aten::") for operation in counter.work]
    assert len(set(names)) == len(names), names
    return dict(zip(names, counter.work.values(), strict=True))


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_a_product_forward_and_backward() -> None:
    a, b = leaf(3, 5), leaf(5, 7)
    out = a @ b
    forward = work_of(lambda: a @ b)["mm"]
    assert (forward.calls, forward.flops) == (1, 2 * 3 * 5 * 7)
    assert (forward.bytes, forward.dtype) == (FP32 * (15 + 35 + 21), "float32")
    with Counts() as counter:
        out.backward(torch.ones(3, 7))
    products = [work for operation, work in counter.work.items() if operation.name == "aten::mm"]
    assert sum(work.flops for work in products) == 2 * (2 * 3 * 5 * 7)
    assert sum(work.bytes for work in products) == 2 * FP32 * (15 + 35 + 21)


def test_bias_and_batches_of_products() -> None:
    addmm = work_of(lambda: torch.addmm(torch.ones(7), torch.ones(3, 5), torch.ones(5, 7)))["addmm"]
    assert (addmm.flops, addmm.bytes) == (2 * 3 * 5 * 7, FP32 * (7 + 15 + 35 + 21))
    half = [torch.ones(2, 3, 5, dtype=torch.bfloat16), torch.ones(2, 5, 7, dtype=torch.bfloat16)]
    bmm = work_of(lambda: torch.bmm(*half))["bmm"]
    assert (bmm.flops, bmm.bytes) == (2 * 2 * 3 * 5 * 7, BF16 * (30 + 70 + 42))
    assert bmm.dtype == "bfloat16"


@pytest.mark.parametrize(("groups", "first"), [(1, False), (2, False), (1, True)])
def test_a_convolution_forward_and_backward(groups: int, first: bool) -> None:
    image, weight = torch.randn(2, 4, 8, 8, requires_grad=not first), leaf(6, 4 // groups, 3, 3)

    def convolve() -> Tensor:
        return F.conv2d(image, weight, stride=2, padding=1, groups=groups)

    forward = work_of(convolve)["convolution"]
    once = 2 * (2 * 6 * 4 * 4) * (4 // groups * 3 * 3)  # of each output: channels × kernel
    sizes = 2 * 4 * 8 * 8 + 6 * (4 // groups) * 9 + 2 * 6 * 4 * 4
    assert (forward.flops, forward.bytes) == (once, FP32 * sizes)
    out = convolve()
    gradient = torch.ones_like(out)
    inputs = (weight,) if first else (image, weight)
    backward = work_of(lambda: torch.autograd.grad(out, inputs, gradient))["convolution_backward"]
    if first:  # no gradient of the image, for which the weight would be read
        read_and_written = out.numel() + image.numel() + weight.numel()
        assert (backward.flops, backward.bytes) == (once, FP32 * read_and_written)
    else:
        read_and_written = out.numel() + 2 * image.numel() + 2 * weight.numel()
        assert (backward.flops, backward.bytes) == (2 * once, FP32 * read_and_written)


def test_a_transposed_convolution() -> None:
    image, weight = torch.ones(2, 4, 5, 5), torch.ones(4, 3, 2, 2)
    work = work_of(lambda: F.conv_transpose2d(image, weight, stride=2))["convolution"]
    assert work.flops == 2 * (2 * 4 * 5 * 5) * (3 * 2 * 2)  # of each input: channels × kernel


def test_element_wise_operators_move_bytes_and_count_no_flops() -> None:
    a, b = torch.ones(10, 3), torch.ones(10, 3)
    assert vars(work_of(lambda: a + b)["add"]) == vars(Work(1, FP32 * 90, 0, None))
    assert work_of(lambda: a.add_(b))["add_"].bytes == FP32 * 90  # two read, one written
    assert work_of(lambda: a.copy_(b))["copy_"].bytes == FP32 * 60  # what is overwritten: not read
    assert work_of(lambda: a.zero_())["zero_"].bytes == FP32 * 30
    assert work_of(lambda: torch.mm(a.T, b, out=torch.empty(3, 3)))["mm"].bytes == FP32 * 69
    wide = torch.ones(10, 1).expand(10, 1000)
    assert work_of(lambda: wide.sum())["sum"].bytes == FP32 * (10 + 1)  # in memory once
    assert not work_of(lambda: a.T.reshape(3, 10)[1:].detach()).keys() - {"clone"}


def test_batch_norm_forward_and_backward() -> None:
    image, weight, bias = leaf(4, 3, 5, 5), leaf(3), leaf(3)
    mean, variance = torch.zeros(3), torch.ones(3)

    def normalise() -> Tensor:
        return F.batch_norm(image, mean, variance, weight, bias, training=True)

    # Parameters and running statistics are read, the batch's statistics written. The schema does
    # not say that the running ones are changed.
    forward = work_of(normalise)["native_batch_norm"]
    assert forward.bytes == FP32 * (2 * image.numel() + 2 * 3 + 2 * 3 + 2 * 3)
    out = normalise()
    gradient = torch.ones_like(out)
    inputs = (image, weight, bias)
    backward = work_of(lambda: torch.autograd.grad(out, inputs, gradient))[
        "native_batch_norm_backward"
    ]
    # The weight, running and saved statistics are read, the gradients of both parameters written.
    assert backward.bytes == FP32 * (3 * image.numel() + 3 + 4 * 3 + 2 * 3)
    assert forward.flops == backward.flops == 0


def test_attention_forward_and_backward() -> None:
    n, heads, queries, keys, width = 2, 3, 8, 16, 4
    query = leaf(n, heads, queries, width)
    key, value = leaf(n, heads, keys, width), leaf(n, heads, keys, width)
    product = 2 * n * heads * queries * keys * width
    work = work_of(lambda: F.scaled_dot_product_attention(query, key, value))
    forward = work["_scaled_dot_product_flash_attention_for_cpu"]
    sums = n * heads * queries  # logsumexp
    assert forward.flops == 2 * product
    assert forward.bytes == FP32 * (2 * query.numel() + 2 * key.numel() + sums)
    out = F.scaled_dot_product_attention(query, key, value)
    gradient = torch.ones_like(out)
    inputs = (query, key, value)
    backward = work_of(lambda: torch.autograd.grad(out, inputs, gradient))[
        "_scaled_dot_product_flash_attention_for_cpu_backward"
    ]
    assert backward.flops == 5 * product  # with the scores computed anew
    assert backward.bytes == FP32 * (4 * query.numel() + 4 * key.numel() + sums)


def test_tables_are_read_and_written_where_they_are_looked_up() -> None:
    table, indices = torch.ones(1000, 4), torch.tensor([1, 5, 5])
    assert work_of(lambda: F.embedding(indices, table))["embedding"].bytes == (
        INT64 * 3 + 2 * FP32 * 12
    )
    added = work_of(lambda: table.index_put_((indices,), torch.ones(3, 4), accumulate=True))
    # Values read, and as many elements of the table read and written.
    assert added["index_put_"].bytes == INT64 * 3 + 3 * FP32 * 12
    places, values = torch.tensor([[1, 5, 5]]), torch.ones(1, 3)
    summed = work_of(lambda: torch.zeros(1, 1000).scatter_reduce_(1, places, values, "sum"))
    assert summed["scatter_reduce_"].bytes == INT64 * 3 + 3 * FP32 * 3


def test_an_lstm_layer() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("needs a torch with oneDNN, whose LSTM layer is one operator")
    layer, frames = torch.nn.LSTM(5, 7), torch.randn(11, 2, 5)
    with Counts() as counter:
        layer(frames)[0].sum().backward()
    flops = {operation.name: work.flops for operation, work in counter.work.items()}
    once = 2 * 11 * 2 * (4 * 7) * (5 + 7)  # steps × samples × gates × inputs
    assert flops["aten::mkldnn_rnn_layer"] == once
    assert flops["aten::mkldnn_rnn_layer_backward"] == 2 * once


def test_an_optimizer_reads_gradients_and_reads_and_writes_the_rest() -> None:
    weight, unused = leaf(5, 3), leaf(100)
    weight.grad = torch.ones(5, 3)
    optimizers = {
        torch.optim.AdamW([weight, unused]): 1 + 2 * 3,
        torch.optim.SGD([weight, unused], lr=0.1, momentum=0.9): 1 + 2 * 2,
        torch.optim.SGD([weight, unused], lr=0.1): 1 + 2,
    }
    for optimizer, accesses in optimizers.items():
        optimizer.step()
        assert optimizer_bytes(optimizer) == accesses * FP32 * 15

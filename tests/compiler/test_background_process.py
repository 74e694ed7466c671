"""The fork that compiles can do a step's work, for which its parent has threads and it has none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery_lib.compiler.background_process import CompilerProcess
from gallery_lib.kernels import (  # noqa: F401  registers the operators
    batch_norm_two_gradients,
    cross_entropy,
    max_pool,
)
from gallery_lib.optim import fused_cpu

SECONDS = 60.0


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Give this process two threads, which are there before it is forked."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1_000_000).sum()
    yield
    torch.set_num_threads(before)


def in_the_fork(work: Callable[[], None]) -> None:
    """Run `work` in the process of the compiler; fail where it does not come to an end."""
    process, end = CompilerProcess(work, 0), time.monotonic() + SECONDS
    while (code := process.exit_code()) is None:
        if time.monotonic() > end:
            process.end()
            pytest.fail(f"the process still works after {SECONDS} s")
        time.sleep(0.02)
    assert code == 0, process.fault()


def gradients(result: Tensor, *of: Tensor) -> None:
    torch.autograd.grad(result.float().square().mean(), of)


def image(dtype: torch.dtype) -> Tensor:
    values = torch.randn(8, 64, 16, 16).to(dtype)
    return values.contiguous(memory_format=torch.channels_last).requires_grad_()


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def convolution(dtype: torch.dtype, side: int) -> None:
    x, w = image(dtype), weight(64, 64, side, side, dtype=dtype)
    gradients(functional.conv2d(x, w, padding=side // 2), x, w)


def up_convolution(dtype: torch.dtype) -> None:
    x, w = image(dtype), weight(64, 32, 2, 2, dtype=dtype)
    gradients(functional.conv_transpose2d(x, w, stride=2), x, w)


def layers(dtype: torch.dtype) -> None:
    x, w = weight(512, 256, dtype=dtype), weight(1024, 256, dtype=dtype)
    gradients(functional.gelu(functional.layer_norm(functional.linear(x, w), (1024,))), x, w)


def attention(dtype: torch.dtype, dropout: float) -> None:
    heads = [weight(2, 8, 128, 64, dtype=dtype) for _ in range(3)]
    gradients(functional.scaled_dot_product_attention(*heads, dropout_p=dropout), *heads)


def recurrent() -> None:
    layer, x = nn.LSTM(80, 256, num_layers=2), weight(50, 16, 80)
    gradients(layer(x)[0], x, *layer.parameters())


def own_operators(dtype: torch.dtype) -> None:
    x = image(dtype)
    pooled, _ = torch.ops.gallery.max_pool(x, [3, 3], [2, 2], [1, 1], False)
    gradients(functional.batch_norm(pooled.float(), None, None, training=True), x)
    logits = weight(300, 2000, dtype=dtype)
    loss = cross_entropy.cross_entropy(logits, torch.randint(0, 2000, (300,)))
    (logits.grad,) = torch.autograd.grad(loss, logits)
    wide = logits.detach().float().requires_grad_()
    wide.grad = logits.grad.float()
    fused_cpu.AdamW([wide]).step()


WORK: dict[str, Callable[[], None]] = {
    "fp32 convolution": lambda: convolution(torch.float32, 3),
    "bf16 convolution": lambda: convolution(torch.bfloat16, 3),
    "bf16 convolution of pixels": lambda: convolution(torch.bfloat16, 1),
    "fp32 transposed convolution": lambda: up_convolution(torch.float32),
    "bf16 transposed convolution": lambda: up_convolution(torch.bfloat16),
    "fp32 layers": lambda: layers(torch.float32),
    "bf16 layers": lambda: layers(torch.bfloat16),
    "fp32 attention": lambda: attention(torch.float32, 0.0),
    "bf16 attention": lambda: attention(torch.bfloat16, 0.0),
    "bf16 attention with dropout": lambda: attention(torch.bfloat16, 0.1),
    "recurrent layers": recurrent,
    "own operators in fp32": lambda: own_operators(torch.float32),
    "own operators in bf16": lambda: own_operators(torch.bfloat16),
}


@pytest.mark.parametrize("name", WORK)
def test_the_fork_does_the_work_of_a_step(name: str) -> None:
    in_the_fork(WORK[name])


def test_the_fork_writes_code_for_the_threads_of_its_parent() -> None:
    def work() -> None:
        assert torch.get_num_threads() == 2

    in_the_fork(work)


def test_a_fork_that_is_ended_by_a_signal_says_where_it_was() -> None:
    def ended_here() -> None:
        os.abort()

    process = CompilerProcess(ended_here, 0)
    while process.exit_code() is None:
        time.sleep(0.02)
    fault = process.fault()
    assert fault.startswith(f'it was ended by SIGABRT in "{__file__}"')
    assert fault.endswith("in ended_here")

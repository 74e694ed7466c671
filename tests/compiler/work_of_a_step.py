"""Do a step's work, kind by kind, each in a fork of this process; print what came of it as JSON.

    python tests/compiler/work_of_a_step.py

This process never runs a backward pass itself: torch lets no fork of one that has run one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

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
THREADS = 2


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


def in_the_fork(work: Callable[[], None]) -> str:
    """Run `work` in the process of the compiler; return why that failed, or ""."""
    process, end = CompilerProcess(work, 0), time.monotonic() + SECONDS
    while (code := process.exit_code()) is None:
        if time.monotonic() > end:
            process.end()
            return f"it still worked after {SECONDS} s"
        time.sleep(0.02)
    return process.fault() if code else ""


def main() -> None:
    """Do all work with two threads in this process, which are there before it is forked."""
    torch.set_num_threads(THREADS)
    torch.ones(1_000_000).sum()
    print(json.dumps({name: in_the_fork(work) for name, work in WORK.items()}))


if __name__ == "__main__":
    main()

"""Cases of layers, of the loss, and of what makes a batch of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, finish_batch
from gallery_lib.kernels.batch_norm import batch_norm_relu
from gallery_lib.kernels.cross_entropy import cross_entropy
from gallery_lib.kernels.image_batch import prepare_images
from kernel_cases.case import Build, Call, Case


def _there_and_back(
    function: Callable[..., Tensor], leaves: Sequence[Tensor], of_result: Tensor | None = None
) -> Call:
    """Return a call of forward and backward: the result and the gradients of `leaves`."""

    def call() -> tuple[Tensor, ...]:
        result = function(*leaves)
        return (result.detach(), *torch.autograd.grad(result, leaves, of_result))

    return call


def batch_norm(channels: int, size: int, with_residual: bool) -> Build:
    """Return the case of BatchNorm (+ add) + ReLU, forward and backward, on 128 images in bf16.

    The baseline is eager in channels_last.
    """

    def build(device: torch.device, small: bool) -> Case:
        torch.manual_seed(0)
        shape = (2, channels, min(size, 7), 7) if small else (128, channels, size, size)
        x, residual, of_result = (
            torch.randn(shape, device=device).bfloat16().to(memory_format=torch.channels_last)
            for _ in range(3)
        )
        weight, bias = (
            torch.rand(channels, device=device) + 0.5,
            torch.randn(channels, device=device),
        )
        leaves = [
            tensor.requires_grad_()
            for tensor in (x, weight, bias, *([residual] if with_residual else []))
        ]

        def running() -> tuple[Tensor, Tensor]:
            return torch.zeros(channels, device=device), torch.ones(channels, device=device)

        ours_running, eager_running = running(), running()

        def ours(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None) -> Tensor:
            return batch_norm_relu(x, *ours_running, weight, bias, residual=residual)

        def eager(
            x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None
        ) -> Tensor:
            result = functional.batch_norm(x, *eager_running, weight, bias, True)
            return functional.relu(result if residual is None else result + residual)

        calls = (
            _there_and_back(ours, leaves, of_result),
            _there_and_back(eager, leaves, of_result),
        )
        passes = 4 + 7 if with_residual else 3 + 5
        return Case(
            *calls,
            lambda: _there_and_back(torch.compile(eager), leaves, of_result),
            passes * x.numel() * 2,
            1.3,
        )

    return build


def cross_entropy_loss(device: torch.device, small: bool) -> Case:
    """Return the case of 2048 rows of 50257 classes in bf16, with label smoothing.

    The baseline is torch in fp32, as autocast does it.
    """
    torch.manual_seed(0)
    rows, classes = (8, 50) if small else (2048, 50257)
    logits = torch.randn(rows, classes, device=device).bfloat16().requires_grad_()
    labels = torch.randint(0, classes, (rows,), device=device)

    def ours(logits: Tensor) -> Tensor:
        return cross_entropy(logits, labels, label_smoothing=0.1)

    def eager(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits.float(), labels, label_smoothing=0.1)

    calls = (_there_and_back(ours, [logits]), _there_and_back(eager, [logits]))
    return Case(
        *calls, lambda: _there_and_back(torch.compile(eager), [logits]), 3 * 2 * rows * classes, 2.0
    )


def images(device: torch.device, small: bool) -> Case:
    """Return the case of 256 images of 224² that become a normalised batch in bf16.

    The baseline is what the loader does without the kernel.
    """
    images = torch.randint(
        0, 256, (2, 8, 8, 3) if small else (256, 224, 224, 3), dtype=torch.uint8, device=device
    )
    labels = torch.zeros(len(images), dtype=torch.int64, device=device)

    def ours() -> Tensor:
        return prepare_images(
            images, mean=MEAN, standard_deviation=STANDARD_DEVIATION, dtype=torch.bfloat16
        )

    def eager() -> Tensor:
        return finish_batch((images, labels), torch.channels_last, torch.bfloat16)[0]

    return Case(ours, eager, lambda: torch.compile(eager), 3 * images.numel(), 3.0)

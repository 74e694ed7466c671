"""Cases of benchmarks/kernels.py: each kernel's work, done by torch, torch.compile and the kernel.

A case is built where it is to run, and at a small size for the tests. Two calls with the same state
give the same values on all sides (tests/project/test_kernel_benchmark.py). The sizes are those of
training on a large device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, finish_batch
from gallery_lib.kernels import compression, gradient_statistics
from gallery_lib.kernels.batch_norm import batch_norm_relu
from gallery_lib.kernels.cross_entropy import cross_entropy
from gallery_lib.kernels.image_batch import prepare_images
from gallery_lib.optim import sync_free

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One piece of work in several implementations.

    Each call does the work once and returns tensors to compare. `compiled` builds its call, which
    takes a while.
    """

    ours: Call
    eager: Call
    compiled: Callable[[], Call] | None
    bytes_moved: int  # least that the kernels have to read and write
    aim: float | None  # intended speed-up over eager


Build = Callable[[torch.device, bool], Case]
"""Function that builds a case on a device, at a small size or at full size."""


def _there_and_back(
    function: Callable[..., Tensor], leaves: Sequence[Tensor], of_result: Tensor | None = None
) -> Call:
    """Return a call of forward and backward: the result and the gradients of `leaves`."""

    def call() -> tuple[Tensor, ...]:
        result = function(*leaves)
        return (result.detach(), *torch.autograd.grad(result, leaves, of_result))

    return call


def _shapes(architecture: str, small: bool) -> list[torch.Size]:
    with torch.device("meta"):
        if architecture == "ResNet-50":
            from torchvision.models import resnet50

            model = resnet50()
        else:
            import timm

            model = timm.create_model("vit_small_patch16_224")
    return [parameter.shape for parameter in model.parameters()][: 12 if small else None]


def _parameters(architecture: str, device: torch.device, small: bool) -> list[Tensor]:
    torch.manual_seed(0)
    parameters = [
        torch.randn(shape, device=device) * 0.05 for shape in _shapes(architecture, small)
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return parameters


def _lamb(parameters: list[Tensor], **arguments: Any) -> torch.optim.Optimizer:
    from timm.optim import Lamb  # torch has none

    return Lamb(parameters, max_grad_norm=None, **arguments)


_OPTIMIZERS: dict[
    str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any], dict[str, Any], int, float]
] = {
    # ours, torch's, arguments of both, arguments of torch's, bytes per element (4 of them to look
    # for infinities), aim
    "AdamW": (sync_free.AdamW, torch.optim.AdamW, {"weight_decay": 0.01}, {"fused": True}, 32, 1.2),
    "SGD": (
        sync_free.SGD,
        torch.optim.SGD,
        {"lr": 0.01, "momentum": 0.9, "nesterov": True},
        {"fused": True},
        24,
        1.2,
    ),
    "RMSprop": (
        sync_free.RMSprop,
        torch.optim.RMSprop,
        {"lr": 0.01, "momentum": 0.9},
        {"foreach": True},
        32,
        3.0,
    ),
    "RAdam": (sync_free.RAdam, torch.optim.RAdam, {"lr": 0.01}, {"foreach": True}, 32, 3.0),
    "LAMB": (sync_free.LAMB, _lamb, {"lr": 0.01, "weight_decay": 0.01}, {}, 44, 1.2),
}


def _optimizer(name: str, architecture: str) -> Build:
    """Return the case of a whole optimizer step on scaled gradients.

    The baseline is torch's fused or foreach form with GradScaler (LAMB: timm's).
    """
    ours_class, torchs_class, arguments, own, bytes_of_element, aim = _OPTIMIZERS[name]

    def build(device: torch.device, small: bool) -> Case:
        mine, theirs, third = (_parameters(architecture, device, small) for _ in range(3))
        optimizer, torchs = ours_class(mine, **arguments), torchs_class(theirs, **arguments, **own)
        scale = torch.ones((), device=device)

        def ours() -> list[Tensor]:
            found_inf = gradient_statistics.gradient_statistics(
                [parameter.grad for parameter in mine]
            )[1]
            optimizer.grad_scale, optimizer.found_inf = scale, found_inf
            optimizer.step()
            return mine

        def with_scaler(
            parameters: list[Tensor], optimizer: torch.optim.Optimizer, step: Callable[..., Any]
        ) -> Call:
            scaler = torch.amp.GradScaler(device.type, init_scale=1.0, growth_interval=10**9)
            scaler.scale(scale)

            def call() -> list[Tensor]:
                step(scaler, optimizer)
                scaler.update()
                return parameters

            return call

        def compiled() -> Call:
            own_optimizer = torchs_class(third, **arguments, capturable=True)
            compiled_step = torch.compile(own_optimizer.step)

            def step(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
                scaler.unscale_(optimizer)
                compiled_step()

            return with_scaler(third, own_optimizer, step)

        # These optimizers are capturable; compiling one takes half a minute.
        can_compile = name in ("AdamW", "RMSprop", "RAdam") and architecture == "ResNet-50"
        elements = sum(parameter.numel() for parameter in mine)
        eager = with_scaler(theirs, torchs, lambda scaler, optimizer: scaler.step(optimizer))
        return Case(
            ours, eager, compiled if can_compile else None, elements * bytes_of_element, aim
        )

    return build


def _statistics(device: torch.device, small: bool) -> Case:
    """Return the case of norm and overflow flag of ResNet-50's gradients.

    The baseline is torch's norm and the scaler's check.
    """
    gradients = [parameter.grad for parameter in _parameters("ResNet-50", device, small)]
    one = torch.ones((), device=device)

    def eager() -> tuple[Tensor, Tensor]:
        found_inf = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, one)
        return torch.nn.utils.get_total_norm(gradients), found_inf

    def ours() -> tuple[Tensor, Tensor]:
        return gradient_statistics.gradient_statistics(gradients)

    def compiled() -> Call:
        function = torch.compile(gradient_statistics.reference)
        return lambda: function(gradients)

    return Case(ours, eager, compiled, 4 * sum(gradient.numel() for gradient in gradients), None)


def _batch_norm(channels: int, size: int, with_residual: bool) -> Build:
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
            each.requires_grad_()
            for each in (x, weight, bias, *([residual] if with_residual else []))
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


def _cross_entropy(device: torch.device, small: bool) -> Case:
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


def _images(device: torch.device, small: bool) -> Case:
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


def _pack(wire: str) -> Build:
    """Return the case of packing 25 million fp32 gradients for the wire, with error feedback.

    The baseline is the same in plain torch.
    """

    def build(device: torch.device, small: bool) -> Case:
        torch.manual_seed(0)
        # The packed size is a multiple of 16 bytes, since padding may hold any values.
        gradient = torch.randn(1008 if small else 25_000_000, device=device)
        errors = [torch.zeros_like(gradient) for _ in range(3)]

        def ours() -> tuple[Tensor, Tensor]:
            return compression.pack(gradient, wire, errors[0]), errors[0]

        def by(function: Callable[..., Tensor], error: Tensor) -> Call:
            return lambda: (function(gradient, error, wire), error)

        bytes_of_element = 12 + (1 if wire == "int8" else 2)
        reference = compression.reference_pack
        calls = (ours, by(reference, errors[1]))
        return Case(
            *calls,
            lambda: by(torch.compile(reference), errors[2]),
            bytes_of_element * gradient.numel(),
            None,
        )

    return build


def _accumulate(wire: str) -> Build:
    """Return the case of averaging what 8 ranks sent of 25 million gradients.

    The baseline is the same in plain torch.
    """

    def build(device: torch.device, small: bool) -> Case:
        torch.manual_seed(0)
        gradient = torch.randn(1000 if small else 25_000_000, device=device)
        packed = torch.stack([compression.pack(gradient * (rank + 1), wire) for rank in range(8)])
        sums = [torch.zeros_like(gradient) for _ in range(3)]

        def ours() -> Tensor:
            compression.accumulate_(sums[0], packed, wire, factor=1 / 8, add=False)
            return sums[0]

        def by(function: Callable[..., None], sum: Tensor) -> Call:
            def call() -> Tensor:
                function(sum, packed, wire, 1 / 8, False)
                return sum

            return call

        reference = compression.reference_accumulate
        calls = (ours, by(reference, sums[1]))
        return Case(
            *calls,
            lambda: by(torch.compile(reference), sums[2]),
            packed.numel() + 4 * gradient.numel(),
            None,
        )

    return build


CASES: dict[str, Build] = {
    "gradient_statistics, ResNet-50": _statistics,
    **{
        f"{name}, {model}": _optimizer(name, model)
        for name in _OPTIMIZERS
        for model in ("ResNet-50", "ViT-S/16")
    },
    "batch_norm_relu, 64×112²": _batch_norm(64, 112, False),
    "batch_norm_relu, 256×56²": _batch_norm(256, 56, False),
    "batch_norm_relu, 2048×7²": _batch_norm(2048, 7, False),
    "batch_norm_relu + add, 256×56²": _batch_norm(256, 56, True),
    "batch_norm_relu + add, 2048×7²": _batch_norm(2048, 7, True),
    "cross_entropy, 2048×50257": _cross_entropy,
    "prepare_images, 256×224²": _images,
    **{f"pack {wire}": _pack(wire) for wire in compression.WIRES},
    **{f"accumulate {wire}, 8 ranks": _accumulate(wire) for wire in compression.WIRES},
}

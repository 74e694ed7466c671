"""Time the own CUDA kernels on a GPU, beside torch and a copy of as many bytes.

    python3 benchmarks/kernels.py --out benchmarks/results/MACHINE/kernels.json
    python3 benchmarks/kernels.py --only "AdamW, ResNet-50" --host

Each kernel takes turns with torch eager, torch.compile where it is a rival, and a copy of as many
bytes as the kernel has to move, which is the floor. Whether they are right is what the tests marked
`gpu` check, also under compute-sanitizer: `compute-sanitizer --tool memcheck python -m pytest -n 0
-m gpu tests/kernels`. With `--host` the seconds are those that the host takes to queue a call.
Without a CUDA device the exit code is 2.

A case is built where it is to run, and at a small size for the tests. Two calls with the same state
give the same values on all sides (tests/project/test_benchmarks.py). The sizes are those of
training on a large device.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import figures_file
import torch
from torch import Tensor
from torch.nn import functional

from gallery_lib.config.switches import COMPILER_VARIABLE, KERNELS_VARIABLE
from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, finish_batch
from gallery_lib.errors import InputError
from gallery_lib.kernels import compression, gradient_statistics
from gallery_lib.kernels.batch_norm import batch_norm_relu
from gallery_lib.kernels.cross_entropy import cross_entropy
from gallery_lib.kernels.image_batch import prepare_images
from gallery_lib.kernels.runtime import usage
from gallery_lib.optim import sync_free
from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.stats import percentiles, ratio_of_medians

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One piece of work in several implementations, each of which returns tensors to compare."""

    ours: Call
    eager: Call
    bytes_moved: int  # least that the kernels have to read and write
    aim: float | None = None  # intended speed-up over eager
    compiled: Call | None = None  # compiles at its first call


Build = Callable[[torch.device, bool], Case]
"""Function that builds a case on a device, at a small size or at full size."""


# --------------------------------------------------------------------------------------------------
# Layers, loss and batches of images


def _there_and_back(
    ours: Callable[..., Tensor],
    eager: Callable[..., Tensor],
    leaves: Sequence[Tensor],
    bytes_moved: int,
    aim: float,
    of_result: Tensor | None = None,
) -> Case:
    """Return the case of forward and backward: the result and the gradients of `leaves`."""

    def both_ways(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        result = function(*leaves)
        return (result.detach(), *torch.autograd.grad(result, leaves, of_result))

    calls = [partial(both_ways, function) for function in (ours, eager, torch.compile(eager))]
    return Case(calls[0], calls[1], bytes_moved, aim, calls[2])


def batch_norm(channels: int, size: int, device: torch.device, small: bool) -> Case:
    """Return BatchNorm + ReLU on 128 images in bf16; the baseline is eager in channels_last."""
    torch.manual_seed(0)
    shape = (2, channels, min(size, 7), 7) if small else (128, channels, size, size)
    x, of_result = (
        torch.randn(shape, device=device).bfloat16().to(memory_format=torch.channels_last)
        for _ in range(2)
    )
    weight = torch.rand(channels, device=device) + 0.5
    bias = torch.randn(channels, device=device)
    leaves = [x, weight, bias]
    for leaf in leaves:
        leaf.requires_grad_()
    zeros, ones = torch.zeros(channels, device=device), torch.ones(channels, device=device)
    running = [(zeros.clone(), ones.clone()) for _ in range(2)]

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return batch_norm_relu(x, *running[0], weight, bias)

    def eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.relu(functional.batch_norm(x, *running[1], weight, bias, True))

    return _there_and_back(ours, eager, leaves, 8 * x.numel() * 2, 1.3, of_result)


def cross_entropy_loss(device: torch.device, small: bool) -> Case:
    """Return smoothed cross-entropy of bf16 logits; the baseline is fp32, as autocast does it."""
    torch.manual_seed(0)
    rows, classes = (8, 50) if small else (2048, 50257)
    leaves = [torch.randn(rows, classes, device=device).bfloat16().requires_grad_()]
    labels = torch.randint(0, classes, (rows,), device=device)

    def ours(logits: Tensor) -> Tensor:
        return cross_entropy(logits, labels, label_smoothing=0.1)

    def eager(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits.float(), labels, label_smoothing=0.1)

    return _there_and_back(ours, eager, leaves, 3 * 2 * rows * classes, 2.0)


def images(device: torch.device, small: bool) -> Case:
    """Return images that become a normalised batch in bf16; the baseline is the loader's way."""
    shape = (2, 8, 8, 3) if small else (256, 224, 224, 3)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    labels = torch.zeros(len(images), dtype=torch.int64, device=device)

    def ours() -> Tensor:
        return prepare_images(
            images, mean=MEAN, standard_deviation=STANDARD_DEVIATION, dtype=torch.bfloat16
        )

    def eager() -> Tensor:
        return finish_batch((images, labels), torch.channels_last, torch.bfloat16)[0]

    return Case(ours, eager, 3 * images.numel(), 3.0, torch.compile(eager))


# --------------------------------------------------------------------------------------------------
# Optimizers


def _parameters(architecture: str, device: torch.device, small: bool) -> list[Tensor]:
    import timm

    torch.manual_seed(0)
    with torch.device("meta"):
        model = timm.create_model(architecture)
    shapes = [parameter.shape for parameter in model.parameters()][: 12 if small else None]
    parameters = [torch.randn(shape, device=device) * 0.05 for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return parameters


def _lamb(parameters: list[Tensor], **arguments: Any) -> torch.optim.Optimizer:
    from timm.optim import Lamb  # torch has none

    return Lamb(parameters, max_grad_norm=None, **arguments)


_FUSED, _FOREACH = {"fused": True}, {"foreach": True}
_MOMENTUM, _DECAY = {"lr": 0.01, "momentum": 0.9}, {"lr": 0.01, "weight_decay": 0.01}
OPTIMIZERS: dict[str, Any] = {
    "AdamW": (torch.optim.AdamW, _DECAY, _FUSED, 32, 1.2),
    "SGD": (torch.optim.SGD, {**_MOMENTUM, "nesterov": True}, _FUSED, 24, 1.2),
    "RMSprop": (torch.optim.RMSprop, _MOMENTUM, _FOREACH, 32, 3.0),
    "RAdam": (torch.optim.RAdam, {"lr": 0.01}, _FOREACH, 32, 3.0),
    "LAMB": (_lamb, _DECAY, {}, 44, 1.2),
}
"""Form of torch, arguments of both forms and of torch's, bytes moved per element, aim."""


def optimizer_step(name: str, architecture: str, device: torch.device, small: bool) -> Case:
    """Return the case of a whole optimizer step on scaled gradients.

    The baseline is torch's fused or foreach form with GradScaler (LAMB: timm's).
    """
    torchs_form, arguments, torchs_arguments, bytes_per_element, aim = OPTIMIZERS[name]
    mine, theirs = (_parameters(architecture, device, small) for _ in range(2))
    optimizer = getattr(sync_free, name)(mine, **arguments)
    torchs = torchs_form(theirs, **arguments, **torchs_arguments)

    def stepping(optimizer: torch.optim.Optimizer, kind: type[torch.amp.GradScaler]) -> Call:
        scaler = kind(device.type, init_scale=1.0, growth_interval=10**9)
        scaler.scale(torch.ones((), device=device))

        def step() -> list[Tensor]:
            scaler.step(optimizer)
            scaler.update()
            return optimizer.param_groups[0]["params"]

        return step

    ours, eager = stepping(optimizer, GradScaler), stepping(torchs, torch.amp.GradScaler)
    bytes_moved = bytes_per_element * sum(parameter.numel() for parameter in mine)
    return Case(ours, eager, bytes_moved, aim)


def statistics(device: torch.device, small: bool) -> Case:
    """Return norm and overflow flag of gradients; the baseline is torch's norm and GradScaler."""
    gradients = [parameter.grad for parameter in _parameters("resnet50", device, small)]
    one = torch.ones((), device=device)

    def eager() -> tuple[Tensor, Tensor]:
        found_inf = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, one)
        return torch.nn.utils.get_total_norm(gradients), found_inf

    bytes_moved = 4 * sum(gradient.numel() for gradient in gradients)
    return Case(partial(gradient_statistics.gradient_statistics, gradients), eager, bytes_moved)


# --------------------------------------------------------------------------------------------------
# Gradients on the wire


def pack(device: torch.device, small: bool) -> Case:
    """Return packing of fp32 gradients with error feedback; the baseline is plain torch."""
    torch.manual_seed(0)
    # The packed size is a multiple of 16 bytes, since padding may hold any values.
    gradient = torch.randn(1008 if small else 25_000_000, device=device)
    ours, eager = (torch.zeros_like(gradient) for _ in range(2))
    size = compression.packed_bytes(gradient.numel())

    def by_reference() -> tuple[Tensor, Tensor]:
        packed = torch.empty(size, dtype=torch.uint8, device=device)
        compression.pack_reference(gradient, eager, packed)
        return packed, eager

    def by_kernel() -> tuple[Tensor, Tensor]:
        return compression.pack(gradient, ours), ours

    return Case(by_kernel, by_reference, 13 * gradient.numel())


def accumulate(device: torch.device, small: bool) -> Case:
    """Return the average of gradients that 8 ranks have sent; the baseline is plain torch."""
    torch.manual_seed(0)
    gradient = torch.randn(1000 if small else 25_000_000, device=device)
    packed = torch.stack([compression.pack(gradient * (rank + 1)) for rank in range(8)])
    sums = [torch.zeros_like(gradient) for _ in range(2)]

    def ours() -> Tensor:
        compression.accumulate_(sums[0], packed, factor=1 / 8, add=False)
        return sums[0]

    def eager() -> Tensor:
        compression.accumulate_reference(sums[1], packed, 1 / 8, False)
        return sums[1]

    return Case(ours, eager, packed.numel() + 4 * gradient.numel())


ARCHITECTURES = {"ResNet-50": "resnet50", "ViT-S/16": "vit_small_patch16_224"}
CASES: dict[str, Build] = {
    "gradientstatistics, ResNet-50": statistics,
    **{
        f"{name}, {title}": partial(optimizer_step, name, ARCHITECTURES[title])
        for name, title in itertools.product(OPTIMIZERS, ARCHITECTURES)
    },
    "batch_norm_relu, 64×112²": partial(batch_norm, 64, 112),
    "batch_norm_relu, 256×56²": partial(batch_norm, 256, 56),
    "batch_norm_relu, 2048×7²": partial(batch_norm, 2048, 7),
    "cross_entropy, 2048×50257": cross_entropy_loss,
    "prepare_images, 256×224²": images,
    "pack int8": pack,
    "accumulate int8, 8 ranks": accumulate,
}


# --------------------------------------------------------------------------------------------------
# Turns

CALLS = 5
"""Calls of each candidate in a round."""


def queued(call: Call, calls: int, device: str) -> list[float]:
    """Return the seconds that the host takes for each of so many calls to an idle device."""
    seconds = []
    for _ in range(calls):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds


def timed(case: Case, device: torch.device, rounds: int, *, host: bool = False) -> dict[str, Any]:
    """Return the seconds of each candidate over the rounds, or those of the host, with ratios."""
    source = torch.zeros(max(case.bytes_moved // 2, 1), dtype=torch.uint8, device=device)
    copy = partial(torch.empty_like(source).copy_, source)
    candidates: dict[str, Call] = {"ours": case.ours, "eager": case.eager, "copy": copy}
    candidates |= {"compiled": case.compiled} if case.compiled else {}
    for call in candidates.values():
        for _ in range(3):
            call()

    def turn(name: str) -> list[float]:
        seconds = queued if host else figures_file.seconds_of_calls
        return seconds(candidates[name], CALLS, device.type)

    rows = figures_file.in_turns(candidates, rounds, turn)
    ratios = {
        name: dataclasses.asdict(ratio_of_medians(rows[name], rows["ours"], process_spread=0.0))
        for name in rows
        if name != "ours"
    }
    seconds = {name: percentiles(list(itertools.chain(*rows[name]))) for name in rows}
    return {"seconds": seconds, "times_as_fast_as": ratios, "aim": case.aim}


def rows_of(cases: dict[str, Any]) -> list[list[str]]:
    """Return the table of all kernels."""
    table = [["kernel", "ours", "eager", "over eager", "aim", "over compiled", "of copy rate"]]
    for name, case in cases.items():
        ratios = case["times_as_fast_as"]
        times = [f"{case['seconds'][key]['p50'] * 1e6:.0f} µs" for key in ("ours", "eager")]
        over = [figures_file.ratio_text(ratios.get(key)) for key in ("eager", "compiled")]
        share = f"{100 * ratios['copy']['ratio']:.0f} %"
        table.append([name, *times, over[0], str(case["aim"] or "–"), over[1], share])
    return table


def run() -> int:
    """Time, print and write; return the exit code."""
    parser = figures_file.parser(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    parser.add_argument("--host", action="store_true", help="the seconds of the host alone")
    figures_file.add_numbers(parser, rounds=(20, "turns of each; more narrow the intervals"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise InputError("this needs a CUDA device, and torch finds none here. Nothing was run.")
    os.environ.update({COMPILER_VARIABLE: "1", KERNELS_VARIABLE: "1"})
    device, found = torch.device("cuda"), dict[str, Any]()
    if reason := usage.reason_not_launched(device):
        raise InputError(f"own kernels do not run on this device: {reason}. Nothing was run.")
    for name in (name for name in CASES if arguments.only in name):
        case = CASES[name](device, False)
        found[name] = timed(case, device, arguments.rounds, host=arguments.host)
        torch.cuda.empty_cache()
        figures_file.show(rows_of({name: found[name]}))
        figures_file.write(arguments.out, {"kernels": found}, "CUDA kernels", rows_of(found))
    return 0


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(run))

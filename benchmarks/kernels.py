"""Time the own CUDA kernels on a GPU, beside torch and a copy of as many bytes.

    python3 benchmarks/kernels.py --out benchmarks/results/MACHINE/kernels.json
    ncu --kernel-name regex:adamw python3 benchmarks/kernels.py --only AdamW --once

Each kernel takes turns with torch eager and a copy of as many random bytes as it has to move, which
is the floor; torch.compile follows, where it is a rival. Replays of a captured graph are timed, so
the host takes no part. A graph goes over cases in memory of their own, so no call finds its tensors
in the L2 cache. Two calls with the same state give the same values on all sides, which a test
checks at a small size. Without a CUDA device the exit code is 2.
"""

from __future__ import annotations

import itertools
import os
import sys
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import figures_file
import torch
from torch import Tensor
from torch.nn import functional

from gallery_lib.config import switches
from gallery_lib.data.images.image_folder import MEAN
from gallery_lib.data.images.image_folder import STANDARD_DEVIATION as DEVIATION
from gallery_lib.errors import InputError
from gallery_lib.kernels import gradient_statistics
from gallery_lib.kernels.batch_norm import batch_norm_relu
from gallery_lib.kernels.cross_entropy import cross_entropy
from gallery_lib.kernels.image_batch import prepare_images, scale_and_shift
from gallery_lib.kernels.runtime import usage
from gallery_lib.optim import sync_free
from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.stats import percentiles

Call = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One piece of work in several implementations, each of which returns tensors to compare."""

    ours: Call
    eager: Call
    bytes_moved: int  # least that the kernels have to read and write
    compiled: Call | None = None  # compiles at its first call


compiled = partial(torch.compile, dynamic=False)  # cases of several sizes share their code
Build = Callable[[torch.device, bool], Case]
"""Function of the device, and whether the size is to be small."""


def _there_and_back(
    ours: Call, eager: Call, leaves: list[Tensor], bytes_moved: int, of_result: Any = None
) -> Case:
    """Return the case of forward and backward: the result and the gradients of `leaves`."""
    for leaf in leaves:
        leaf.requires_grad_()

    def both_ways(function: Call) -> tuple[Tensor, ...]:
        result = function(*leaves)
        return (result.detach(), *torch.autograd.grad(result, leaves, of_result))

    calls = [partial(both_ways, function) for function in (ours, eager, compiled(eager))]
    return Case(calls[0], calls[1], bytes_moved, calls[2])


def batch_norm(channels: int, size: int, device: torch.device, small: bool) -> Case:
    """Return BatchNorm + ReLU on 128 images in bf16; the baseline is eager in channels_last."""
    torch.manual_seed(0)
    shape = (2, channels, min(size, 7), 7) if small else (128, channels, size, size)
    x, of_result = (
        torch.randn(shape, device=device).bfloat16().to(memory_format=torch.channels_last)
        for _ in range(2)
    )
    weight, bias = torch.rand(2, channels, device=device).unbind()
    return _there_and_back(
        lambda x, *affine: batch_norm_relu(x, None, None, *affine),
        lambda x, *affine: functional.relu(functional.batch_norm(x, None, None, *affine, True)),
        [x, weight.clone() + 0.5, bias.clone()],
        16 * x.numel(),
        of_result,
    )


def cross_entropy_loss(device: torch.device, small: bool) -> Case:
    """Return smoothed cross-entropy of bf16 logits; the baseline is fp32, as autocast does it."""
    torch.manual_seed(0)
    rows, classes = (8, 50) if small else (2048, 50257)
    labels, smooth = torch.randint(0, classes, (rows,), device=device), {"label_smoothing": 0.1}
    return _there_and_back(
        lambda logits: cross_entropy(logits, labels, **smooth),
        lambda logits: functional.cross_entropy(logits.float(), labels, **smooth),
        [torch.randn(rows, classes, device=device).bfloat16()],
        6 * rows * classes,
    )


def images(device: torch.device, small: bool) -> Case:
    """Return images that become a normalised batch in bf16; the baseline is plain torch."""
    shape = (2, 8, 8, 3) if small else (256, 224, 224, 3)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    scale, shift = (torch.tensor(v, device=device) for v in scale_and_shift(MEAN, DEVIATION))
    wanted = {"mean": MEAN, "standard_deviation": DEVIATION, "dtype": torch.bfloat16}

    def eager() -> Tensor:
        return (images.float() * scale + shift).bfloat16().permute(0, 3, 1, 2)

    ours = partial(prepare_images, images, **wanted)
    return Case(ours, eager, 3 * images.numel(), compiled(eager))


def _parameters(device: torch.device, small: bool) -> list[Tensor]:
    """Return ResNet-50's parameters with gradients, drawn."""
    from torchvision.models import resnet50

    torch.manual_seed(0)
    with torch.device("meta"):
        model = resnet50()
    shapes = [parameter.shape for parameter in model.parameters()][: 12 if small else None]
    parameters = [torch.randn(shape, device=device) * 0.05 for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return parameters


def scaled_step(
    name: str, options: dict[str, float], bytes_moved: int, device: torch.device, small: bool
) -> Case:
    """Return the case of a step with scaler; the baseline is torch's fused form with torch's."""
    mine, theirs = (_parameters(device, small) for _ in range(2))
    own = getattr(sync_free, name)(mine, lr=0.01, **options)
    in_graphs = {"capturable": device.type == "cuda"} if name == "AdamW" else {}
    torchs = getattr(torch.optim, name)(theirs, lr=0.01, fused=True, **options, **in_graphs)

    def step_of(optimizer: torch.optim.Optimizer, kind: type[torch.amp.GradScaler]) -> Call:
        scaler = kind(device.type, init_scale=1.0, growth_interval=10**9)
        scaler.scale(torch.ones((), device=device))

        def step() -> list[Tensor]:
            scaler.step(optimizer)
            scaler.update()
            return optimizer.param_groups[0]["params"]

        return step

    ours, eager = step_of(own, GradScaler), step_of(torchs, torch.amp.GradScaler)
    return Case(ours, eager, bytes_moved * sum(parameter.numel() for parameter in mine))


def statistics(device: torch.device, small: bool) -> Case:
    """Return norm and overflow flag of gradients; the baseline is torch's norm and GradScaler."""
    gradients = [parameter.grad for parameter in _parameters(device, small)]
    one = torch.ones((), device=device)

    def eager() -> tuple[Tensor, Tensor]:
        found_inf = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, one)
        return torch.nn.utils.get_total_norm(gradients), found_inf

    bytes_moved = 4 * sum(gradient.numel() for gradient in gradients)
    return Case(partial(gradient_statistics.gradient_statistics, gradients), eager, bytes_moved)


CASES: dict[str, Build] = {
    "AdamW": partial(scaled_step, "AdamW", {}, 32),
    "SGD": partial(scaled_step, "SGD", {"momentum": 0.9}, 24),
    "gradient statistics": statistics,
    "cross_entropy, 2048×50257": cross_entropy_loss,
    "batch_norm_relu, 64×112²": partial(batch_norm, 64, 112),
    "batch_norm_relu, 256×56²": partial(batch_norm, 256, 56),
    "batch_norm_relu, 2048×7²": partial(batch_norm, 2048, 7),
    "prepare_images, 256×224²": images,
}
"""AdamW, SGD and statistics have ResNet-50's 161 parameters."""


ROUNDS, CALLS, BYTES_IN_TURN, MOST_CASES = 10, 5, 1 << 29, 8
"""Turns, and replays in one; what a graph moves at least, and the most cases it has for that."""


def replay_of(calls: Sequence[Call]) -> Call:
    """Return a function that does all of the calls: it replays a captured graph."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in [*calls] * 3:
            call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph.replay


def timed(build: Build, forms: Sequence[str], small: bool, host: bool) -> dict[str, Any]:
    """Return the microseconds of a call of each form, `copy` among them, which take turns."""
    cases = [build(torch.device("cuda"), small)]
    bytes_moved = cases[0].bytes_moved
    if not (small or host):
        count = min(MOST_CASES, -(-BYTES_IN_TURN // bytes_moved))
        cases += [build(torch.device("cuda"), small) for _ in range(count - 1)]
    draw = partial(torch.randint, 0, 256, (bytes_moved // 2,), dtype=torch.uint8, device="cuda")
    replays: dict[str, Call] = {}
    row: dict[str, Any] = {"bytes_moved": bytes_moved, "cases": len(cases)}
    for form in forms:
        sources = [draw() for _ in cases if form == "copy"]
        copies = [partial(torch.empty_like(source).copy_, source) for source in sources]
        calls = copies or [getattr(case, form) for case in cases]
        try:
            replays[form] = calls[0] if host else replay_of(calls)
        except Exception as error:  # the other forms are measured
            row[form] = {"error": f"{type(error).__name__}: {error}"[:300]}

    def turn(form: str) -> list[float]:
        if host:  # each call finds an idle device
            seconds = timeit.repeat(replays[form], torch.cuda.synchronize, repeat=CALLS, number=1)
        else:
            seconds = figures_file.seconds_of_calls(replays[form], CALLS)
        return [1e6 * one / len(cases) for one in seconds]

    blocks = figures_file.in_turns(replays, 2 if small else ROUNDS, turn, warm_up=True)
    return row | {form: percentiles(list(itertools.chain(*blocks[form]))) for form in blocks}


def run() -> int:
    """Time, print and write; return the exit code."""
    parser = figures_file.parser(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    parser.add_argument("--host", action="store_true", help="time the host that queues a call")
    parser.add_argument("--once", action="store_true", help="call ours once, for a profiler")
    parser.add_argument("--tiny", action="store_true", help="small inputs, to rehearse")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise InputError("this needs a CUDA device, and torch finds none here. Nothing was run.")
    os.environ.update(switches.variables_of(compiler=True, kernels=True))
    device, small = torch.device("cuda"), arguments.tiny
    if reason := usage.reason_not_launched(device):
        raise InputError(f"own kernels do not run on this device: {reason}. Nothing was run.")
    names = [name for name in CASES if arguments.only in name]
    for name in names if arguments.once else ():
        CASES[name](device, small).ours()
    rows = figures_file.Rows(arguments.out, "Microseconds of CUDA kernels, or of the host", names)
    # Compilation takes seconds, so what needs none comes first.
    turns = [("ours", "eager")] if arguments.host else [("ours", "eager", "copy"), ("compiled",)]
    for forms, name in itertools.product([] if arguments.once else turns, names):
        if getattr(CASES[name](device, True), forms[0]):
            rows.add(name, timed(CASES[name], forms, small, arguments.host))
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(run))

"""Steps of one variant of a task on a GPU, with batches on the device; used by on_a_gpu.py.

    python3 benchmarks/gpu_steps.py --task resnet50 --variant ours --batches 32 128 256 largest

Prints a line of JSON for each batch size: milliseconds of a step on the device (CUDA events around
steps that follow one another without a wait), milliseconds that the host takes to queue one,
kernels launched, peak memory, and the losses of the first steps, which start from the same weights
for all variants. The loader is left out on purpose.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import torch

from gallery_lib import accelerate, tasks
from gallery_lib.acceleration import techniques
from gallery_lib.config import Config
from gallery_lib.config.switches import COMPILER_VARIABLE, KERNELS_VARIABLE
from gallery_lib.stats import percentiles
from gallery_lib.train import precision

VARIANTS = (
    "eager",
    "channels_last + fused",
    "inductor",
    "inductor + graphs",
    "ours",
    "ours without graphs",
    "ours + batch-norm kernels",
)
LARGEST = "largest"
_MOST = 8192
"""Batch at which the search for the largest ends."""
_WARM_STEPS, _LOSSES = 4, 5


class Variant:
    """A model with its optimizer, ready to train on one device in one of VARIANTS."""

    def __init__(self, name: str, task: tasks.Task, dtype: torch.dtype | None) -> None:
        ours, by_hand = name.startswith("ours"), name != "eager"
        os.environ[COMPILER_VARIABLE] = str(int(ours))
        os.environ[KERNELS_VARIABLE] = str(int(ours))
        self.task, self.dtype, self.device = task, dtype, torch.device("cuda")
        torch.manual_seed(0)
        self.model: Any = task.build_model()
        channels_last = by_hand and task.image_size is not None
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        if ours:
            config = Config()
            config.compute.bf16 = dtype is torch.bfloat16
            config.compiler.cuda_graphs = "without graphs" not in name
            config.compute.batch_norm_kernels = "batch-norm" in name
            optimizer = self._optimizer(fused=False)
            self.model, self.optimizer = accelerate(self.model, optimizer, config)
            self.done = techniques(self.model)
        else:
            self.model.to(self.device)
            if channels_last:
                self.model.to(memory_format=torch.channels_last)
            if name.startswith("inductor"):
                mode = "reduce-overhead" if "graphs" in name else "default"
                self.model = torch.compile(self.model, mode=mode)
            self.optimizer, self.done = self._optimizer(fused=by_hand), {}

    def _optimizer(self, *, fused: bool) -> torch.optim.Optimizer:
        form = {"fused": True} if fused and self.task.optimizer.name != "RAdam" else {}
        return self.task.optimizer.build(
            self.model.parameters(), lr=None, weight_decay=None, accelerated=False, **form
        )

    def step(self, batch: Any) -> torch.Tensor:
        """Queue one step; return its loss, which is on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        with precision.autocast(self.dtype, "cuda"):
            loss = self.task.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach().clone()


def batch_of(task: tasks.Task, samples: int, layout: torch.memory_format, tiny: bool) -> Any:
    """Return a drawn batch on the device, the same for the same arguments."""
    draw = torch.Generator().manual_seed(1)
    if task.image_size is not None:
        side = 32 if tiny else task.image_size
        images = torch.randn(samples, 3, side, side, generator=draw)
        labels = torch.randint(0, 1000, (samples,), generator=draw)
        return images.to("cuda", memory_format=layout), labels.to("cuda")
    length = 16 if tiny else task.sequence_length
    ids = torch.randint(5, 2000, (samples, length), generator=draw).to("cuda")
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def _launches(step: Callable[[], Any]) -> int | None:
    """Return the kernels of one step; None where nothing counts them."""
    emulated = ctypes.CDLL(None)
    if hasattr(emulated, "fake_gpu_report"):
        emulated.fake_gpu_reset()
        step()
        text = ctypes.create_string_buffer(emulated.fake_gpu_report(None, 0) + 4096)
        emulated.fake_gpu_report(text, len(text))
        lines = [line.split("\t") for line in text.value.decode().splitlines()]
        return sum(int(line[2]) for line in lines if line[0] == "launch")
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type.name == "CUDA"]
    return len(kernels) or None


def measured(variant: Variant, batch: Any, steps: int) -> dict[str, Any]:
    """Return device and host milliseconds of a step, launches, memory and the first losses."""
    torch.cuda.reset_peak_memory_stats()
    losses = [variant.step(batch) for _ in range(_LOSSES)]
    for _ in range(_WARM_STEPS):
        variant.step(batch)
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    host = []
    marks[0].record()
    for mark in marks[1:]:
        began = time.perf_counter()
        variant.step(batch)
        host.append(1000 * (time.perf_counter() - began))
        mark.record()
    torch.cuda.synchronize()
    device = [before.elapsed_time(after) for before, after in itertools.pairwise(marks)]
    return {
        "device_ms": percentiles(device),
        "host_ms": percentiles(host),
        "launches": _launches(lambda: variant.step(batch)),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3),
        "losses": torch.stack(losses).float().tolist(),
    }


def _largest(build: Callable[[], Variant], task: tasks.Task, tiny: bool) -> int:
    """Return the largest batch that fits, by doubling; tiny stops at 8.

    Raises:
        torch.OutOfMemoryError: where not even the smallest fits.
    """
    variant, samples, most = build(), 4, 8 if tiny else _MOST
    while samples < most:
        try:
            batch = batch_of(task, 2 * samples, variant.layout, tiny)
            for _ in range(2):  # the optimizer's states come with the first step
                variant.step(batch)
            torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            break
        samples *= 2
    return samples


def main() -> int:
    """Measure the variant at each batch size; a size that fails has its error in its line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="resnet50", help="a task of the gallery (resnet50)")
    parser.add_argument("--variant", choices=VARIANTS, required=True)
    parser.add_argument("--batches", nargs="+", required=True, metavar="SIZE")
    parser.add_argument("--steps", type=int, default=20, help="counted steps (default: 20)")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--tiny", action="store_true", help="small inputs, to try the command")
    options = parser.parse_args()
    task = tasks.get(options.task)
    dtype = torch.bfloat16 if options.dtype == "bf16" else None

    def build() -> Variant:
        torch._dynamo.reset()
        return Variant(options.variant, task, dtype)

    for size in options.batches:
        line: dict[str, Any] = {"task": task.name, "variant": options.variant, "batch": size}
        began = time.monotonic()
        try:
            if size == LARGEST:
                size = line["batch_size"] = _largest(build, task, options.tiny)
            variant = build()
            batch = batch_of(task, int(size), variant.layout, options.tiny)
            line |= measured(variant, batch, options.steps)
            line["done"] = variant.done
        # Whatever one size raises, the others are measured.
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        variant = batch = None
        torch.cuda.empty_cache()
        line["seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Find out on a GPU what is worth knowing, in ten minutes, most important things first.

    python3 benchmarks/on_a_gpu.py --out benchmarks/results/MACHINE/on-a-gpu.json
    python3 benchmarks/on_a_gpu.py --second --out benchmarks/results/MACHINE/on-a-gpu-2.json

The first command looks at clocks and versions, runs the tests marked `gpu`, and measures ResNet-50
in six variants with batches on the device; then own kernels beside a copy of as many bytes. The
second does the same for BERT, ViT and BART. The file is written after each part,
and what there was no time for is named. It needs torch, torchvision, timm, transformers, cuda-core
and pytest; neither Jupyter nor an installed package. Without a CUDA device the exit code is 2.

Steps are measured with batches on the device: milliseconds on it (CUDA events around steps that
follow one another without a wait), milliseconds that the host takes to queue one, kernels launched,
peak memory, and the losses of the first steps, which start from the same weights for all variants.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import figures_file
import torch

from gallery_lib import accelerate, tasks
from gallery_lib.config import Config
from gallery_lib.config.switches import COMPILER_VARIABLE, KERNELS_VARIABLE
from gallery_lib.errors import InputError
from gallery_lib.stats import percentiles
from gallery_lib.system.processes import OUTPUT, end_supervised, start_supervised

VARIANTS = (
    "eager",
    "channels_last + fused",
    "inductor",
    "inductor + graphs",
    "ours",
    "ours without graphs",
)
_WARM_STEPS, _LOSSES = 4, 5
FIRST_TASKS, SECOND_TASKS = ("resnet50",), ("hf_Bert", "timm_vision_transformer", "hf_Bart")
BATCHES = {
    "resnet50": (128, 32, 256),
    "hf_Bert": (16, 64),
    "timm_vision_transformer": (32, 128),
    "hf_Bart": (16,),
}
LIMITS = {"tests": 120, "variant": 90, "kernels": 150}
"""Most seconds of each part; a variant is a process of its own."""
# With or without pytest-xdist.
TESTS = ("-o", "addopts=--strict-markers --import-mode=importlib", "-m", "gpu", "tests/kernels")


# --------------------------------------------------------------------------------------------------
# Steps of one variant, in a process of its own


class Variant:
    """A model with its optimizer, ready to train on one device in one of VARIANTS."""

    def __init__(self, name: str, task: tasks.Task) -> None:
        ours, by_hand = name.startswith("ours"), name != "eager"
        os.environ[COMPILER_VARIABLE] = str(int(ours))
        os.environ[KERNELS_VARIABLE] = str(int(ours))
        self.task = task
        torch.manual_seed(0)
        self.model: Any = task.build_model()
        channels_last = by_hand and task.image_size is not None
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        if ours:
            config = Config()
            config.compute.bf16 = True
            config.compiler.cuda_graphs = "without graphs" not in name
            optimizer = self._optimizer(fused=False)
            self.model, self.optimizer = accelerate(self.model, optimizer, config)
        else:
            self.model.to("cuda")
            if channels_last:
                self.model.to(memory_format=torch.channels_last)
            if name.startswith("inductor"):
                mode = "reduce-overhead" if "graphs" in name else "default"
                self.model = torch.compile(self.model, mode=mode)
            self.optimizer = self._optimizer(fused=by_hand)

    def _optimizer(self, *, fused: bool) -> torch.optim.Optimizer:
        form = {"fused": True} if fused and self.task.optimizer.name != "RAdam" else {}
        return self.task.optimizer.build(
            self.model.parameters(), lr=None, weight_decay=None, accelerated=False, **form
        )

    def step(self, batch: Any) -> torch.Tensor:
        """Queue one step; return its loss, which is on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
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
    host: list[float] = []

    def step() -> None:
        began = time.perf_counter()
        variant.step(batch)
        host.append(1000 * (time.perf_counter() - began))

    device = figures_file.seconds_of_calls(step, steps, "cuda")
    return {
        "device_ms": percentiles([1000 * seconds for seconds in device]),
        "host_ms": percentiles(host),
        "launches": _launches(lambda: variant.step(batch)),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3),
        "losses": torch.stack(losses).float().tolist(),
    }


def run_variant(options: argparse.Namespace) -> int:
    """Measure a variant at each batch size, and print a line of JSON for each.

    A size that fails has its error in its line.
    """
    task = tasks.get(options.tasks[0])
    for size in options.batches:
        line: dict[str, Any] = {"task": task.name, "variant": options.variants[0], "batch": size}
        try:
            torch._dynamo.reset()
            variant = Variant(options.variants[0], task)
            batch = batch_of(task, size, variant.layout, options.tiny)
            line |= measured(variant, batch, 2 if options.tiny else 20)
        # Whatever one size raises, the others are measured.
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        variant = batch = None
        torch.cuda.empty_cache()
        print(json.dumps(line), flush=True)
    return 0


# --------------------------------------------------------------------------------------------------
# All parts


def program(seconds: float, *command: str) -> dict[str, Any]:
    """Return exit code and output of a Python program; the code is None at its limit.

    None of its processes outlives it or this process: one would stay on the GPU.
    """
    place = {"cwd": figures_file.HERE.parent, "stderr": subprocess.STDOUT}
    process = start_supervised([sys.executable, *command], {}, **place, **OUTPUT)
    code: int | None = None
    try:
        output, _ = process.communicate(timeout=max(1, seconds))
        code = process.returncode
    except subprocess.TimeoutExpired:
        end_supervised(process)
        output = f"{process.communicate()[0]}\nended after {seconds:.0f} s"
    finally:
        end_supervised(process)
    return {"exit_code": code, "lines": output.strip().splitlines()}


def about_the_device() -> dict[str, Any]:
    """Return what the device and its driver say of themselves."""
    query = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
    try:
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        said = f"nvidia-smi: {error}"
    properties = torch.cuda.get_device_properties(0)
    return {"name": properties.name, "memory": properties.total_memory, "nvidia_smi": said}


def steps(seconds: float, task: str, variant: str, tiny: bool) -> list[dict[str, Any]]:
    """Measure a variant of a task in a process of its own; return a row for each batch size."""
    sizes = (2,) if tiny else BATCHES[task]
    command = ["benchmarks/on_a_gpu.py", "--tasks", task, "--variants", variant]
    command += ["--batches", *map(str, sizes), *(["--tiny"] if tiny else [])]
    lines = program(seconds, *command)["lines"] or ["nothing was printed"]
    found = [json.loads(line) for line in lines if line.startswith('{"task"')]
    rows = {row["batch"]: row for row in found}
    about = {"task": task, "variant": variant, "error": lines[-1][:300]}
    return [rows.get(size, {**about, "batch": size}) for size in sizes]


def rows_of(found: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table of all steps."""
    table = [["task", "variant", "batch", "device", "host", "launches", "peak", "last loss"]]
    for row in found:
        about = [row["task"], row["variant"], str(row["batch"])]
        figures = [row["error"][:60], "", "", "", ""] if "error" in row else _figures(row)
        table.append([*about, *figures])
    return table


def _figures(row: dict[str, Any]) -> list[str]:
    device, host = (f"{row[clock]['p50']:.2f} ms" for clock in ("device_ms", "host_ms"))
    peak, loss = f"{row['peak_gib']:.1f} GiB", f"{row['losses'][-1]:.4f}"
    return [device, host, str(row["launches"]), peak, loss]


def run() -> int:
    """Run all parts, print and write; return 1 if a test failed or a variant could not run."""
    parser = figures_file.parser(__doc__)
    parser.add_argument("--second", action="store_true", help="BERT, ViT and BART")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--tasks", nargs="+", choices=BATCHES, help="default: those of the command")
    parser.add_argument("--seconds", type=float, default=570, help="budget (default: 570)")
    parser.add_argument("--tiny", action="store_true", help="small inputs, to try the command")
    parser.add_argument("--batches", nargs="+", type=int, help="only steps, of this first variant")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise InputError("this needs a CUDA device, and torch finds none here. Nothing was run.")
    if options.batches:
        return run_variant(options)
    end, rows = time.monotonic() + options.seconds, list[dict[str, Any]]()
    result: dict[str, Any] = {"device": about_the_device(), "not_run": [], "steps": rows}
    if not options.second:
        result["tests"] = program(LIMITS["tests"], "-m", "pytest", *TESTS)
    tasks_asked = options.tasks or (SECOND_TASKS if options.second else FIRST_TASKS)
    for task, variant in itertools.product(tasks_asked, options.variants):
        left = end - time.monotonic()
        if left < 20:
            result["not_run"].append(f"{variant} of {task}")
            continue
        rows += steps(min(left, LIMITS["variant"]), task, variant, options.tiny)
        figures_file.show(rows_of(rows[-1:]))
        figures_file.write(options.out, result, "The first minutes on a GPU", rows_of(rows))
    if not options.second and not options.tiny:
        seconds = min(LIMITS["kernels"], end - time.monotonic())
        result["kernels"] = program(seconds, "benchmarks/kernels.py")
        figures_file.write(options.out, result, "The first minutes on a GPU", rows_of(rows))
    figures_file.show(rows_of(rows))
    for name in result["not_run"]:
        print(f"no time was left for: {name}")
    failed = result.get("tests", {}).get("exit_code", 0) != 0
    return int(failed or any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(run))

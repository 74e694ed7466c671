"""Find out on a GPU what is worth knowing, in ten minutes, most important things first.

    python3 benchmarks/on_a_gpu.py --out benchmarks/results/MACHINE/on-a-gpu.json
    python3 benchmarks/on_a_gpu.py --second --out benchmarks/results/MACHINE/on-a-gpu-2.json

The first command looks at clocks and versions, runs the tests marked `gpu`, and measures ResNet-50
in seven variants with batches on the device; then own kernels beside a copy of as many bytes, the
loader, and memcheck. The second does the same for BERT, ViT and BART. The file is written after
each part, and what there was no time for is named. It needs torch, torchvision, timm, transformers,
cuda-core and pytest; neither Jupyter nor an installed package. Without a CUDA device the exit code
is 2.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import gpu_programs
import torch
from figures_file import conditions, exit_code, out_file, write_result
from gpu_steps import LARGEST, VARIANTS

from gallery_lib.console import table
from gallery_lib.errors import InputError

FIRST_TASKS, SECOND_TASKS = ("resnet50",), ("hf_Bert", "timm_vision_transformer", "hf_Bart")
BATCHES = {
    "resnet50": ("128", "32", "256", LARGEST),
    "hf_Bert": ("16", "64"),
    "timm_vision_transformer": ("32", "128"),
    "hf_Bart": ("16",),
}
LIMITS = {"tests": 120, "variant": 90, "kernels": 150, "loader": 60, "memcheck": 60}
"""Most seconds of each part; a variant is a process of its own."""


class Clock:
    """What is left of the budget, and the programs that run within it."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left."""
        return self._end - time.monotonic()

    def run(self, command: Sequence[str], limit: float) -> tuple[int | None, str]:
        """Return exit code and output of a program; None where it was ended at its limit."""
        seconds = min(limit, self.left())
        return gpu_programs.run(command, seconds) if seconds >= 5 else (None, "no time left")


def about_the_device(clock: Clock) -> dict[str, Any]:
    """Return what the device and its driver say of themselves."""
    properties = torch.cuda.get_device_properties(0)
    query = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
    try:
        _, said = clock.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 20)
    except OSError as error:
        said = f"nvidia-smi: {error.strerror}"
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "processors": properties.multi_processor_count,
        "nvidia_smi": said.strip(),
        "query": query,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def gpu_tests(clock: Clock) -> dict[str, Any]:
    """Run the tests marked `gpu`; return how they ended, with the last lines."""
    began = time.monotonic()
    command = gpu_programs.pytest_command("-q", *gpu_programs.gpu_tests())
    code, output = clock.run(command, LIMITS["tests"])
    return {
        "exit_code": code,
        "seconds": round(time.monotonic() - began, 1),
        "lines": output.strip().splitlines()[-15:],
    }


def steps(clock: Clock, task: str, variant: str, tiny: bool) -> list[dict[str, Any]]:
    """Measure a variant of a task in a process of its own; return a row for each batch size."""
    sizes = ("2", LARGEST) if tiny else BATCHES[task]
    command = [sys.executable, "benchmarks/gpu_steps.py", "--task", task, "--variant", variant]
    command += ["--batches", *sizes, *(["--tiny", "--steps", "2"] if tiny else [])]
    _, output = clock.run(command, LIMITS["variant"])
    lines = [line for line in output.splitlines() if line.startswith('{"task"')]
    rows = [json.loads(line) for line in lines]
    done = {row["batch"] for row in rows}
    why = (output.strip().splitlines() or ["nothing was printed"])[-1][:300]
    return rows + [
        {"task": task, "variant": variant, "batch": size, "error": why}
        for size in sizes
        if size not in done
    ]


def memcheck(clock: Clock) -> dict[str, Any]:
    """Run the kernels' tests under compute-sanitizer, where it is installed."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        return {"exit_code": None, "lines": ["compute-sanitizer is not installed"]}
    tests = gpu_programs.pytest_command("-x", "-q", "tests/kernels", "-k", gpu_programs.SANITIZED)
    watch = [sanitizer, "--tool", "memcheck", "--error-exitcode", "99"]
    code, output = clock.run([*watch, *tests], LIMITS["memcheck"])
    return {"exit_code": code, "lines": output.strip().splitlines()[-15:]}


def _shown(rows: list[dict[str, Any]]) -> str:
    lines = [["task", "variant", "batch", "device", "host", "launches", "peak", "last loss"]]
    for row in rows:
        lines.append(
            [row["task"], row["variant"], str(row.get("batch_size", row["batch"]))]
            + (
                [row["error"][:60], "", "", "", ""]
                if "error" in row
                else [
                    f"{row['device_ms']['p50']:.2f} ms",
                    f"{row['host_ms']['p50']:.2f} ms",
                    str(row["launches"]),
                    f"{row['peak_gib']:.1f} GiB",
                    f"{row['losses'][-1]:.4f}",
                ]
            )
        )
    return table.text_table(lines)


def _program(clock: Clock, limit: str, *command: str) -> dict[str, Any]:
    code, output = clock.run([sys.executable, *command], LIMITS[limit])
    return {"exit_code": code, "lines": output.strip().splitlines()[-40:]}


def run() -> int:
    """Run all parts, print and write; return 1 if a test failed or a variant could not run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=out_file, help="JSON file for the figures")
    parser.add_argument("--second", action="store_true", help="BERT, ViT and BART")
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="default: all"
    )
    parser.add_argument("--tasks", nargs="+", choices=BATCHES, help="default: those of the command")
    parser.add_argument("--seconds", type=float, default=570, help="budget (default: 570)")
    parser.add_argument("--tiny", action="store_true", help="small inputs, to try the command")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise InputError("this needs a CUDA device, and torch finds none here. Nothing was run.")
    clock = Clock(options.seconds)
    result: dict[str, Any] = {**conditions(), "not_run": []}

    def part(name: str, body: Callable[[], Any], needs: float) -> None:
        if clock.left() < needs:
            result["not_run"].append(name)
            return
        result[name] = body()
        if options.out:
            write_result(options.out, result)
        print(f"{name}: done, {clock.left():.0f} s left", flush=True)

    part("device", lambda: about_the_device(clock), 0)
    if not options.second:
        part("tests", lambda: gpu_tests(clock), 30)
    rows: list[dict[str, Any]] = []
    for task in options.tasks or (SECOND_TASKS if options.second else FIRST_TASKS):
        for variant in options.variants:
            part(
                "steps",
                lambda task=task, variant=variant: (
                    rows.extend(steps(clock, task, variant, options.tiny)) or rows
                ),
                20,
            )
    print(_shown(rows))
    if not options.second and not options.tiny:
        part(
            "kernels",
            lambda: _program(clock, "kernels", "benchmarks/kernels.py", "--only", " "),
            30,
        )
        part(
            "loader",
            lambda: _program(clock, "loader", "benchmarks/loader.py", "--workers", "8", "15"),
            30,
        )
        part("memcheck", lambda: memcheck(clock), 30)
    for name in result["not_run"]:
        print(f"no time was left for: {name}")
    failed = result.get("tests", {}).get("exit_code", 0) != 0
    return int(failed or any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(exit_code(run))

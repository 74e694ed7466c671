"""Measure what a training step on CUDA takes of the host, with or without a GPU.

    python3 benchmarks/host_time.py --out benchmarks/results/MACHINE/host-time.json
    python3 benchmarks/host_time.py --tasks hf_Bert --variants ours eager

The host queues a step's work and goes on. Where queueing takes longer than the device needs, the
host is what limits the speed. Variants run in turns, each time in a process of its own, with small
batches: the host's part does not depend on their size. Where there is no GPU, tests/fake_gpu stands
in for it: torch queues what it queues on a GPU, and nothing is computed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# A checkout works without being installed.
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import gpu_programs
import torch
from figures_file import conditions, exit_code, out_file, write_result
from gpu_steps import VARIANTS

from gallery_lib import tasks
from gallery_lib.console import table
from gallery_lib.errors import GalleryError, InputError
from gallery_lib.stats import turn_order

REFERENCE = "inductor + graphs"
"""Variant that the others are compared with: torch's own with the least work for the host."""
BATCH = 8
LIMIT_SECONDS = 600


def measure(task: str, variant: str, steps: int) -> dict[str, Any]:
    """Return the figures of one process: host milliseconds of a step, launches.

    Raises:
        GalleryError: when the process fails.
    """
    command = ["benchmarks/gpu_steps.py", "--task", task, "--variant", variant]
    command += ["--batches", str(BATCH), "--steps", str(steps)]
    if torch.cuda.is_available():
        code, output = gpu_programs.run([sys.executable, *command], LIMIT_SECONDS)
    else:
        done = _on_the_fake_device(*command)
        code, output = done.returncode, done.stdout
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"task"')]
    if code != 0 or not lines or "error" in lines[0]:
        why = lines[0]["error"] if lines else output.strip()[-600:]
        raise GalleryError(f"{variant} of {task} failed: {why}")
    return {name: lines[0][name] for name in ("host_ms", "launches", "done")}


def _on_the_fake_device(*command: str) -> Any:
    for folder in ("tests", "tests/helpers"):
        if str(ROOT / folder) not in sys.path:
            sys.path.append(str(ROOT / folder))
    from fake_gpu.running import run

    return run(*command, everywhere=True, arithmetic=False, memory_gib=16)


def summary(rounds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return for each variant its median host time, launches, and ratio to REFERENCE by round."""
    result = {}
    for variant in rounds[0]:
        times = [figures[variant]["host_ms"]["p50"] for figures in rounds]
        result[variant] = {
            "host_ms": statistics.median(times),
            "launches": rounds[-1][variant]["launches"],
            "ratios": [
                figures[variant]["host_ms"]["p50"] / figures[REFERENCE]["host_ms"]["p50"]
                for figures in rounds
                if REFERENCE in figures
            ],
        }
    return result


def shown(task: str, found: dict[str, dict[str, Any]]) -> str:
    """Return the table of one task."""
    rows = [["task", "variant", "host, ms a step", "kernels a step", f"over {REFERENCE}"]]
    for variant, row in found.items():
        ratios = row["ratios"]
        ratio = (
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            if ratios
            else ""
        )
        rows.append([task, variant, f"{row['host_ms']:.2f}", str(row["launches"]), ratio])
    return table.text_table(rows)


def run() -> int:
    """Measure, print and write the figures; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["resnet50"], metavar="TASK")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each (default: 3)")
    parser.add_argument("--steps", type=int, default=30, help="counted steps (default: 30)")
    parser.add_argument("--out", type=out_file, help="JSON file for the figures")
    options = parser.parse_args()
    if options.rounds < 1 or options.steps < 1:
        raise InputError("--rounds and --steps must be at least 1.")
    for task in options.tasks:
        tasks.get(task)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "in software"
    result: dict[str, Any] = {**conditions(), "device": device, "batch": BATCH, "tasks": {}}
    for task in options.tasks:
        for variant in options.variants:  # fills the compiler's cache
            measure(task, variant, 1)
        rounds = []
        for number in range(options.rounds):
            order = turn_order(options.variants, number)
            figures = {variant: measure(task, variant, options.steps) for variant in order}
            rounds.append({variant: figures[variant] for variant in options.variants})
        result["tasks"][task] = {"rounds": rounds, "summary": summary(rounds)}
        print(shown(task, result["tasks"][task]["summary"]), flush=True)
        if options.out:
            write_result(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(run))

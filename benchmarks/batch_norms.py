"""Measure what own batch norms change of an accelerated step on the CPU, in turns.

    python3 benchmarks/batch_norms.py --rounds 8
    python3 benchmarks/batch_norms.py --task resnet18 --image_size 64

Both forms are compiled by the backend in one process, in bfloat16, on one batch: one with
`config.compute.batch_norm_kernels`, one without. They take blocks of steps in the order A B B A,
and the first step of a block does not count. The loader is left out. Beside seconds, the processor
time of all threads is printed, which other programs disturb less; with OMP_WAIT_POLICY=PASSIVE in
the environment, threads that wait do not count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import torch
from figures_file import exit_code

from gallery_lib import accelerate, tasks
from gallery_lib.acceleration import techniques
from gallery_lib.config import Config
from gallery_lib.config.switches import COMPILER_VARIABLE
from gallery_lib.errors import InputError
from gallery_lib.stats import ratio_of_medians, turn_order
from gallery_lib.system import hardware

FORMS = ("the compiler's", "own")


class Form:
    """A model with its optimizer, and one batch to train it on."""

    def __init__(self, name: str, task: tasks.Task, batch_size: int, image_size: int) -> None:
        torch.manual_seed(0)
        model, config = task.build_model(), Config()
        config.compute.bf16 = True
        config.compute.batch_norm_kernels = name == "own"
        optimizer = task.optimizer.build(
            model.parameters(), lr=None, weight_decay=None, accelerated=False
        )
        self.loss, (self.model, self.optimizer) = task.loss, accelerate(model, optimizer, config)
        draw = torch.Generator().manual_seed(1)
        images = torch.randn(batch_size, 3, image_size, image_size, generator=draw)
        labels = torch.randint(0, 1000, (batch_size,), generator=draw)
        self.batch = images.to(memory_format=torch.channels_last), labels

    def step(self) -> tuple[float, float]:
        """Train one step; return its seconds, and those of processors."""
        began, used = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.loss(self.model, self.batch)
        loss.backward()
        self.optimizer.step()
        return time.perf_counter() - began, time.process_time() - used


def _arguments() -> argparse.Namespace:
    """Return the arguments.

    Raises:
        InputError: for what cannot be measured.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="resnet50", help="task with batch norms (resnet50)")
    parser.add_argument("--batch_size", type=int, default=16, help="images of a step (default: 16)")
    parser.add_argument("--image_size", type=int, default=224, help="in pixels (default: 224)")
    parser.add_argument("--rounds", type=int, default=8, help="blocks of each form (default: 8)")
    parser.add_argument("--block_steps", type=int, default=3, help="steps of a block (default: 3)")
    arguments = parser.parse_args()
    if arguments.rounds < 2 or arguments.block_steps < 2:
        raise InputError("--rounds and --block_steps must be at least 2.")
    if tasks.get(arguments.task).image_size is None:
        raise InputError(f"--task {arguments.task} takes no images.", parameter="task")
    return arguments


def main() -> int:
    """Measure, print, and return the exit code."""
    arguments = _arguments()
    os.environ[COMPILER_VARIABLE] = "1"
    torch.set_num_threads(hardware.cores())
    task = tasks.get(arguments.task)
    forms = {name: Form(name, task, arguments.batch_size, arguments.image_size) for name in FORMS}
    if "batch norm" not in techniques(forms["own"].model):
        raise InputError(f"--task {arguments.task} has no batch norm that own operators take here.")
    blocks: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in FORMS}
    for number in range(-1, arguments.rounds):  # the first compiles, and does not count
        for name in turn_order(FORMS, number):
            block = [forms[name].step() for _ in range(arguments.block_steps)][1:]
            if number >= 0:
                blocks[name].append(block)
    for place, what in enumerate(("seconds", "processor seconds")):
        times = {name: [[step[place] for step in b] for b in blocks[name]] for name in FORMS}
        medians = ", ".join(
            f"{name} {statistics.median(t for block in times[name] for t in block):.3f}"
            for name in FORMS
        )
        ratio = ratio_of_medians(*(times[name] for name in FORMS))
        print(f"{task.name}, {what} of a step: {medians}; own batch norms {ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))

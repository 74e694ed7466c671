r"""Step times of DDP's own gradient averaging and of an accelerated one, in turns, under torchrun.

    python -m torch.distributed.run --nproc_per_node 2 \
        benchmarks/ddp_benchmark.py --model resnet50 --precision amp --wire bf16
    python3 benchmarks/ddp_benchmark.py diff before.json after.json

The options of the accelerated strategy are those of `config.Comm`; with --tune all lossless
strategies take part. Each is trained for ROUNDS turns of BLOCK_STEPS steps, with real batches of
the task. A step takes as long as on the slowest rank. Rates without a word are of one device, as in
`440/s`; that of all devices together is named.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import ddp_turns
import torch
from figures_file import conditions, writable, write_result
from torch import Tensor, nn

from gallery_lib import tasks
from gallery_lib.comm import process_group, topology
from gallery_lib.comm.accelerate_ddp import accelerate_ddp, step_in_backward
from gallery_lib.comm.candidates import PLAIN, candidates
from gallery_lib.comm.rebuild import SETTLING_STEPS
from gallery_lib.config import Comm, TrainConfig
from gallery_lib.config.command_line import parse_command_line
from gallery_lib.config.options import option
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import InputError
from gallery_lib.train.loop import train
from gallery_lib.train.session import Observer, Session


@dataclass(frozen=True)
class DdpBenchmarkConfig:
    """Training that is measured, and its length."""

    model: str = option("resnet50", "Task to train, or FILE.py:NAME.")
    precision: Literal["fp32", "amp"] = option("amp", "fp32, or amp for autocast (bf16 on a CPU).")
    batch_size: int | None = option(
        None,
        "Samples per process and step. Default: the task's quick setting.",
        unit="samples",
        minimum=1,
    )
    image_size: int | None = option(
        None,
        "Height and width of images. Default: the task's quick setting.",
        unit="pixels",
        minimum=1,
    )
    compiler_opt: bool = option(
        False, "Train with the accelerated backend, in every strategy. Start-up compiles."
    )
    rounds: int = option(
        8,
        "Turns of each strategy. More narrow the intervals, and take longer.",
        unit="turns",
        minimum=4,
    )
    block_steps: int = option(
        5, "Counted steps of a turn, after the steps that settle it.", unit="steps", minimum=1
    )
    fused: bool = option(
        False,
        "Use torch's fused form of the optimizer in every strategy, DDP's own too. Not every "
        "optimizer has one.",
    )
    early_steps: bool = option(
        False,
        "Update a bucket's parameters while other buckets are being averaged, in every strategy "
        "but DDP's own.",
    )
    out: str | None = option(None, "JSON file for the figures. Default: printed only.")


class Turns(Observer):
    """Observer that changes the strategy at each turn, and keeps the times of counted steps."""

    def __init__(self, ways: dict[str, Comm], config: DdpBenchmarkConfig) -> None:
        """Plan the turns of all strategies."""
        self.order = ddp_turns.order(ways, config.rounds)
        self.ways, self.length = ways, SETTLING_STEPS + config.block_steps
        self.early_steps, self.fused = config.early_steps, config.fused
        self.seconds: dict[str, ddp_turns.Blocks] = {name: [] for name in ways}

    @property
    def steps(self) -> int:
        """Return the number of steps of all turns."""
        return self.length * len(self.order)

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        """Choose the strategy of the turn at its first step (see Observer)."""
        if step == 0:
            self._propagate = session.propagate
        if step == 0 and self.fused:
            _choose_fused(session.optimizer)
        if step % self.length == 0:
            session.clock.pause()
            name = self.order[step // self.length]
            optimizer = session.optimizer if self.early_steps and name != PLAIN else None
            accelerate_ddp(session.model, self.ways[name], optimizer=optimizer)  # type: ignore[arg-type]
            session.propagate = (
                self._propagate if optimizer is None else _stepping(session.model, self._propagate)
            )
            session.clock.resume()

    def after_training(self, session: Session) -> None:
        """Sort the step times of the slowest rank by strategy (see Observer)."""
        slowest = [
            max(step) for step in zip(*process_group.all_ranks(session.clock.read()), strict=True)
        ]
        for number, name in enumerate(self.order):
            self.seconds[name].append(
                slowest[number * self.length + SETTLING_STEPS : (number + 1) * self.length]
            )


def _stepping(model: nn.Module, propagate: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def stepping(loss: Tensor) -> None:
        with step_in_backward(model):
            propagate(loss)

    return stepping


def _choose_fused(optimizer: torch.optim.Optimizer) -> None:
    """Switch the optimizer to torch's fused form, before its first step."""
    if "fused" not in optimizer.defaults:
        raise InputError(
            f"torch has no fused form of {type(optimizer).__name__}. Leave --fused out.",
            parameter="fused",
        )
    for group in optimizer.param_groups:
        group["fused"] = True


def _ways(options: Comm, hosts: topology.Topology) -> dict[str, Comm]:
    if options.tune:
        return candidates(options, hosts)
    if options == Comm():
        raise InputError(
            "say what to compare with DDP's own way: --tune, or options such as --hierarchical, "
            "--streams 2, --wire bf16."
        )
    return {PLAIN: Comm(), "accelerated": options}


def measure(config: DdpBenchmarkConfig, options: Comm) -> int:
    """Train, print the figures, and return the exit code; rank 0 writes the file."""
    if process_group.world_size() < 2:
        raise InputError(
            "one process has nobody to share gradients with. "
            "Start it with torchrun: see the first lines of this file."
        )
    if config.out:
        writable(Path(config.out))
    process_group.ensure_initialized()
    hosts = topology.find()
    observer = Turns(_ways(options, hosts), config)
    with TemporaryDirectory() as folder:
        training = TrainConfig(
            model=config.model,
            amp_level="O1" if config.precision == "amp" else "O0",
            max_steps=observer.steps,
            warmup_steps=SETTLING_STEPS,
            log_interval=observer.steps,
            evaluate=False,
            run_dir=process_group.from_rank_0(folder),
            batch_size=config.batch_size,
            image_size=config.image_size,
            compiler_opt=config.compiler_opt,
        )
        results = train(tasks.with_sizes(training, "quick"), observer)
    if process_group.rank() != 0:
        return 0
    device = "CPU" if results.environment["device"] == "cpu" else "GPU"
    batch_size = results.config["batch_size"]
    figures = ddp_turns.figures(observer.ways, observer.seconds)
    print(ddp_turns.text(figures, batch_size, [len(ranks) for ranks in hosts.hosts], device))
    if config.out:
        about = {
            **conditions(),
            "model": config.model,
            "precision": config.precision,
            "batch_size": batch_size,
            "hosts": str(hosts),
        }
        about |= {
            "early_steps": config.early_steps,
            "fused": config.fused,
            "compiler_opt": config.compiler_opt,
        }
        write_result(Path(config.out), {**about, "ways": figures})
        print(f"figures: {config.out}")
    return 0


def main() -> int:
    """Measure, or compare two files, and return the exit code."""
    if sys.argv[1:2] == ["diff"]:
        if len(sys.argv) != 4:
            raise InputError("diff takes two files: diff BEFORE.json AFTER.json", parameter="files")
        return ddp_turns.diff(Path(sys.argv[2]), Path(sys.argv[3]))
    config, options = parse_command_line(
        sys.argv[1:], DdpBenchmarkConfig, Comm, prog="ddp_benchmark.py", description=__doc__ or ""
    )
    return measure(config, options)


if __name__ == "__main__":
    code = exit_code_of(main, error_prefix="error", interrupted="stopped")
    sys.stdout.flush()
    os._exit(code)

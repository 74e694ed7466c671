"""Check that a replay is like the real training: both take turns under torchrun.

`ddp_lab.py validate` starts this script. First each process trains some steps without
communication, while the others do the same beside it, and records its timeline. Then real training
and its replay take turns, with DDP's own strategy of averaging gradients and, where options ask for
one, with another. A step takes as long as on the slowest rank. Nothing is stretched, since real
computation cannot be. On a CPU a replay waits by computing: communication takes part of the cores
there, and slows down what computes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
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
from ddp_turns import Blocks
from figures_file import out_file, write_result
from torch import nn

from gallery_lib import stats, tasks
from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.comm.candidates import PLAIN
from gallery_lib.comm.rebuild import SETTLING_STEPS
from gallery_lib.config import Comm, TrainConfig
from gallery_lib.config.command_line import CommandLine
from gallery_lib.config.options import option
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import InputError
from gallery_lib.measure.replay.model import Replay
from gallery_lib.measure.replay.record import WARMUP_STEPS, Recorder
from gallery_lib.train.loop import train
from gallery_lib.train.session import Observer, Session

AGREEMENT = 1.15
"""Greatest allowed ratio of real and replayed step times, the longer over the shorter."""


@dataclass(frozen=True)
class DdpValidateConfig:
    """Training that is recorded and replayed, and its length."""

    model: str = option("resnet18", "Task to train, or FILE.py:NAME.")
    precision: Literal["fp32", "amp"] = option("fp32", "fp32, or amp for autocast (bf16 on a CPU).")
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
    recorded_steps: int = option(
        5, "Steps to record. The timeline is their median.", unit="steps", minimum=3
    )
    rounds: int = option(
        6,
        "Turns of each strategy, real and replayed. More narrow the intervals, and take longer.",
        unit="turns",
        minimum=4,
    )
    block_steps: int = option(
        4, "Counted steps of a turn, after the steps that settle it.", unit="steps", minimum=1
    )


class Beside(Observer):
    """Observer that records first, and then replays a turn before each turn of real training."""

    def __init__(self, ways: dict[str, Comm], config: DdpValidateConfig) -> None:
        """Plan the recorded steps, and the turns of all strategies."""
        self.ways, self.config = ways, config
        self.recorder = Recorder(WARMUP_STEPS, config.recorded_steps)
        self.order = ddp_turns.order(ways, config.rounds)
        self.first, self.length = (
            WARMUP_STEPS + config.recorded_steps,
            SETTLING_STEPS + config.block_steps,
        )
        self.replayed: dict[str, Blocks] = {name: [] for name in ways}
        self.real: dict[str, Blocks] = {name: [] for name in ways}

    @property
    def steps(self) -> int:
        """Return the number of steps of real training, recorded ones included."""
        return self.first + self.length * len(self.order)

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        """Record, or let the replay take its turn (see Observer)."""
        model: Any = session.model
        self.recorder.before_step(session, step, batch)
        model.require_backward_grad_sync = step >= self.first
        if step < self.first or (step - self.first) % self.length:
            return
        session.clock.pause()
        if step == self.first:
            self.timeline = self.recorder.timeline(session)
            on_cuda = process_group.device().type == "cuda"
            self.replay = Replay(self.timeline, seed=process_group.rank(), at_work=not on_cuda)
            self.replay_ddp = nn.parallel.DistributedDataParallel(self.replay, init_sync=False)
        name = self.order[(step - self.first) // self.length]
        accelerate_ddp(self.replay_ddp, self.ways[name])
        seconds = [self.replay.train_step(self.replay_ddp) for _ in range(self.length)]
        self.replayed[name].append(seconds[SETTLING_STEPS:])
        accelerate_ddp(self.replay_ddp, Comm())
        accelerate_ddp(model, self.ways[name])
        session.clock.resume()

    def after_training(self, session: Session) -> None:
        """Collect the step times of the slowest rank (see Observer)."""
        seconds = session.clock.read()[self.first :]
        for number, name in enumerate(self.order):
            self.real[name].append(
                seconds[number * self.length + SETTLING_STEPS : (number + 1) * self.length]
            )
        for times in (self.real, self.replayed):
            times |= {
                name: stats.slowest_rank(process_group.all_ranks(blocks))
                for name, blocks in times.items()
            }


def _figures(real: Blocks, replayed: Blocks) -> dict[str, Any]:
    p50s = [
        stats.percentiles([step for block in blocks for step in block])["p50"]
        for blocks in (real, replayed)
    ]
    ratio = stats.ratio_of_medians(replayed, real)
    agree = max(ratio.ratio, 1 / ratio.ratio) <= AGREEMENT
    seconds = {"real_p50_seconds": p50s[0], "replay_p50_seconds": p50s[1]}
    return {**seconds, "replay_over_real": dataclasses.asdict(ratio), "within_15_percent": agree}


def main() -> int:
    """Train, replay, and return the exit code; rank 0 writes."""
    line = CommandLine(
        "ddp_validate.py", __doc__ or "", (DdpValidateConfig, Comm), operands=_operands
    )
    config, way, words = line.parse(sys.argv[1:])
    if process_group.world_size() < 2:
        raise InputError(
            "one process has nobody to share gradients with. Start this with ddp_lab.py validate."
        )
    process_group.ensure_initialized()
    observer = Beside({PLAIN: Comm()} | ({"accelerated": way} if way != Comm() else {}), config)
    with TemporaryDirectory() as folder:
        training = TrainConfig(
            model=config.model,
            amp_level="O1" if config.precision == "amp" else "O0",
            max_steps=observer.steps,
            warmup_steps=observer.first,
            log_interval=observer.steps,
            evaluate=False,
            threads=int(os.environ.get("OMP_NUM_THREADS", "1")),
            run_dir=process_group.from_rank_0(folder),
            batch_size=config.batch_size,
            image_size=config.image_size,
        )
        train(tasks.with_sizes(training, "quick"), observer)
    if process_group.rank() == 0:
        about = {
            **dataclasses.asdict(observer.timeline),
            "gradients": len(observer.timeline.gradients),
        }
        figures = {
            name: _figures(observer.real[name], observer.replayed[name]) for name in observer.ways
        }
        write_result(words.out, {"timeline": about, "ways": figures})
    return 0


def _operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=out_file, required=True, help="JSON file for the figures")


if __name__ == "__main__":
    code = exit_code_of(main, error_prefix="error", interrupted="stopped")
    sys.stdout.flush()
    os._exit(code)

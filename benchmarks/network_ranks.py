"""What network.py does in each process under torchrun: strategies of averaging take turns.

`train` trains a task with real batches, `replay` replays a recorded timeline (measure/replay.py):
communication uses the network between the processes, computation is waiting. A step takes as long
as on the slowest rank. Rates without a word are of one device; that of all devices is named.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any, Literal

import figures_file
import torch
from torch import Tensor, nn

from gallery_lib import memory, stats, tasks
from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import SETTLING_STEPS, accelerate_ddp, step_in_backward
from gallery_lib.comm.tuner import PLAIN, candidates
from gallery_lib.config import Comm, TrainConfig
from gallery_lib.config.options import check_value, option
from gallery_lib.console.text import rate, seconds
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.measure.replay import Replay, read_timeline
from gallery_lib.system import hardware
from gallery_lib.system.files import write_json
from gallery_lib.train.loop import train
from gallery_lib.train.results import load_line
from gallery_lib.train.session import Observer, Session

DDP = nn.parallel.DistributedDataParallel
PERCENTILES = ("p50", "p75", "p90", "p95")
Blocks = list[list[float]]
"""Seconds of steps, by turn."""


def figures(ways: Mapping[str, Comm], times: Mapping[str, Blocks]) -> dict[str, Any]:
    """Return for each strategy its options, step times, and speed-up over DDP's own."""
    found: dict[str, Any] = {}
    for name, blocks in times.items():
        steps = stats.percentiles([step for block in blocks for step in block])
        found[name] = {"options": dataclasses.asdict(ways[name]), "step_seconds": steps}
        if name != PLAIN:
            ratio = stats.ratio_of_medians(times[PLAIN], blocks)
            found[name]["speedup"] = {**dataclasses.asdict(ratio), "verdict": ratio.verdict}
    return found


def text(found: Mapping[str, Any], batch_size: int, hosts: Sequence[int], device: str) -> str:
    """Return figures as text: `8 GPUs -- 1M/8G: p50: 0.073s 440 samples/s …` below each strategy.

    `batch_size` is that of a device; `hosts` has the number of processes on each.
    """
    world, lines = sum(hosts), []
    for name, way in found.items():
        steps = way["step_seconds"]
        per_device = "  ".join(
            f"{part}:  {steps[part]:.3f}s {rate(batch_size / steps[part])}" for part in PERCENTILES
        )
        total = f"all devices, p50: {rate(world * batch_size / steps['p50'])}"
        where = f"{world} {device}s -- {len(hosts)}M/{world}{device[0]}"
        lines.append(f"{name}:\n  {where}:  {per_device}  ({total})")
        if ratio := way.get("speedup"):
            lines.append(f"  {figures_file.ratio_text(ratio)} over {PLAIN}: {ratio['verdict']}")
    return "\n".join(lines)


def rows_of(found: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of all strategies."""
    table = [["gradients", "step", "over DDP's own"]]
    for name, way in found.items():
        ratio = figures_file.ratio_text(way.get("speedup"))
        table.append([name, seconds(way["step_seconds"]["p50"]), ratio])
    return table


# --------------------------------------------------------------------------------------------------
# Real training


@dataclass(frozen=True)
class NetworkConfig:
    """Training that is measured, and its length."""

    model: str = "resnet50"
    """Task to train, or FILE.py:NAME."""
    precision: Literal["fp32", "amp"] = "amp"
    """fp32, or amp for autocast (bf16 on a CPU)."""
    batch_size: int | None = None
    """Samples per process. Default: the task's quick size."""
    compiler_opt: bool = False
    """Train with the accelerated backend in every strategy."""
    rounds: int = option(8, minimum=4)
    """Turns of each strategy; more narrow intervals."""
    block_steps: int = 5
    """Counted steps of a settled turn."""
    early_steps: bool = False
    """In all but DDP's own: update a bucket's parameters while others are averaged."""


class Turns(Observer):
    """Observer that changes the strategy at each turn, and keeps the times of counted steps."""

    def __init__(self, ways: dict[str, Comm], config: NetworkConfig) -> None:
        """Plan the turns of all strategies."""
        rounds = range(config.rounds)
        self.order = [name for number in rounds for name in stats.turn_order(ways, number)]
        self.ways, self.length = ways, SETTLING_STEPS + config.block_steps
        self.early_steps = config.early_steps
        self.seconds: dict[str, Blocks] = {name: [] for name in ways}

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        """Choose the strategy of the turn at its first step (see Observer)."""
        if step == 0:
            self._propagate = session.propagate
        if step % self.length == 0 and process_group.world_size() > 1:
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
        ranks = process_group.all_ranks(session.clock.read())
        slowest = [max(step) for step in zip(*ranks, strict=True)]
        for number, name in enumerate(self.order):
            first = number * self.length
            self.seconds[name].append(slowest[first + SETTLING_STEPS : first + self.length])


def _stepping(model: nn.Module, propagate: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def stepping(loss: Tensor) -> None:
        with step_in_backward(model):
            propagate(loss)

    return stepping


def _ways_of_training(options: Comm, hosts: process_group.Topology) -> dict[str, Comm]:
    if process_group.world_size() == 1:
        return {PLAIN: Comm()}
    if options.tune:
        return candidates(options, hosts)
    if options == Comm():
        raise InputError(
            "say what to compare with DDP's own way: --tune, or options such as --hierarchical, "
            "--streams 2, --wire bf16."
        )
    return {PLAIN: Comm(), "accelerated": options}


def train_in_turns(config: NetworkConfig, options: Comm, words: argparse.Namespace) -> int:
    """Train, print the figures, and return the exit code; rank 0 writes the file."""
    if process_group.place().launcher is None:
        raise InputError("start it with torchrun: see the first lines of network.py.")
    process_group.ensure_initialized()
    hosts = process_group.find_topology()
    observer = Turns(_ways_of_training(options, hosts), config)
    steps = observer.length * len(observer.order)
    with TemporaryDirectory() as folder:
        training = TrainConfig(
            model=config.model,
            amp_level="O1" if config.precision == "amp" else "O0",
            max_steps=steps,
            warmup_steps=SETTLING_STEPS,
            log_interval=steps,
            evaluate=False,
            run_dir=process_group.from_rank_0(folder),
            batch_size=config.batch_size,
            compiler_opt=config.compiler_opt,
        )
        results = train(tasks.with_sizes(training, "quick"), observer)
    if process_group.rank() != 0:
        return 0
    device = "CPU" if results.environment["device"] == "cpu" else "GPU"
    batch_size = results.config["batch_size"]
    if process_group.world_size() == 1:
        # The base of ddp_acc. A refusal would stand above a traceback of torchrun's.
        print("one process has nobody to share gradients with: these are its steps alone.")
    found = figures(observer.ways, observer.seconds)
    print(text(found, batch_size, [len(ranks) for ranks in hosts.hosts], device))
    if line := load_line(results):
        print(line)
    about = {**dataclasses.asdict(config), "batch_size": batch_size, "hosts": str(hosts)}
    heading = f"Training of {config.model} on {hosts}"
    figures_file.write(words.out, {**about, "ways": found}, heading, rows_of(found))
    return 0


# --------------------------------------------------------------------------------------------------
# Replay


@dataclass(frozen=True)
class ReplayConfig:
    """Options of replaying timelines, and the strategies of averaging gradients that take part."""

    stretch: float = option(1.0, minimum=1, maximum=1000)
    """Multiply waits by it and divide rates and step times, where this machine is too slow."""
    wires: str = "exact"
    """Wire formats, with commas between, each tried in all strategies."""
    only: str | None = None
    """Only these strategies, with semicolons between, beside DDP's own. Default: all."""
    rounds: int = option(6, minimum=4)
    """Turns of each strategy. More turns take longer."""
    block_steps: int = 4
    """Counted steps in a turn."""


def ways_of_replay(config: ReplayConfig, hosts: process_group.Topology) -> dict[str, Comm]:
    """Return DDP's own strategy, and those that `config.wires` and `config.only` ask for.

    Raises:
        InputError: for an unknown name.
    """
    strategies = {PLAIN: Comm()}
    for wire in config.wires.split(","):
        options = Comm(wire=check_value(Comm, "wire", wire.strip()))
        prefix = "" if options.wire == "exact" else f"{options.wire}: "
        named = candidates(options, hosts)
        strategies |= {f"{prefix}{name}": named[name] for name in named if name != PLAIN}
    if config.only is None:
        return strategies
    names = [name.strip() for name in config.only.split(";")]
    for name in names:
        if name not in strategies:
            raise InputError(
                f"only={name!r} is no strategy here.{did_you_mean(name, strategies)} Known: "
                f"{'; '.join(strategies)}",
                parameter="only",
            )
    return {PLAIN: Comm(), **{name: strategies[name] for name in names}}


def replay(config: ReplayConfig, words: argparse.Namespace) -> int:
    """Measure the timeline and return the exit code; rank 0 writes the figures."""
    timeline = read_timeline(words.timeline)
    torch.set_num_threads(1)
    memory.give_back()  # DDP makes its buckets anew at every turn
    process_group.ensure_initialized()
    hosts = process_group.find_topology()
    replay = Replay(timeline, stretch=config.stretch, seed=process_group.rank())
    model = DDP(replay, init_sync=False)  # no rank has values to broadcast
    alone = process_group.world_size() == 1
    strategies = {PLAIN: Comm()} if alone else ways_of_replay(config, hosts)
    turns, count = itertools.count(1), config.rounds * len(strategies)

    def turn(name: str) -> list[float]:
        if process_group.rank() == 0:
            what = f"{timeline.task}, turn {next(turns)} of {count}: {name}"
            print(what, file=sys.stderr, flush=True)
        # Gradients may be views of the previous strategy's buckets.
        model.zero_grad(set_to_none=True)
        accelerate_ddp(model, strategies[name])
        steps = [replay.train_step(model) for _ in range(SETTLING_STEPS + config.block_steps)]
        return steps[SETTLING_STEPS:]

    own = figures_file.in_turns(strategies, config.rounds, turn)
    ranks = {name: process_group.all_ranks(blocks) for name, blocks in own.items()}
    times = {name: stats.slowest_rank(blocks) for name, blocks in ranks.items()}
    accelerate_ddp(model, Comm())  # ends the threads and process groups of the strategy
    if process_group.rank() == 0:
        count, size = len(timeline.gradients), timeline.gradient_bytes
        about = dataclasses.asdict(timeline) | {"gradients": count, "gradient_bytes": size}
        found = {
            "replay": dataclasses.asdict(config),
            "timeline": about,
            "replayed_on": hardware.describe(hardware.machine_facts()),
            "processes_by_host": [len(ranks) for ranks in hosts.hosts],
            "ways": figures(strategies, times),
        }
        write_json(words.out, found)
    return 0

"""Replay of timelines under torchrun: DDP's own gradient averaging and other strategies, in turns.

    torchrun … benchmarks/ddp_replay.py turns TIMELINE.json … --out FOLDER
    torchrun … benchmarks/ddp_replay.py tuned TIMELINE.json … --out FOLDER

With `turns` every strategy takes turns. With `tuned` the tuner chooses; then DDP's own strategy and
its choice take turns. Communication uses the network between the processes, computation is waiting:
see gallery_lib/measure/replay. Rank 0 writes FOLDER/NAME.json for each TIMELINE NAME.json, as soon
as it is measured. `ddp_lab.py` starts this script on the hosts of a lab.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import sys
from pathlib import Path
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import ddp_turns
import torch
from ddp_turns import Blocks
from figures_file import write_result
from torch import nn

from gallery_lib import stats
from gallery_lib.comm import process_group, topology
from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.comm.candidates import PLAIN, candidates
from gallery_lib.comm.rebuild import SETTLING_STEPS
from gallery_lib.comm.tuner import Tuner
from gallery_lib.config import Comm, ReplayConfig
from gallery_lib.config.command_line import CommandLine
from gallery_lib.config.options import check_value
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.measure.replay.model import Replay
from gallery_lib.measure.replay.timeline import Timeline, read_timeline
from gallery_lib.memory import allocator
from gallery_lib.system import hardware

DDP = nn.parallel.DistributedDataParallel


def ways(config: ReplayConfig, hosts: topology.Topology) -> dict[str, Comm]:
    """Return DDP's own strategy, and those that `config.wires` and `config.only` ask for.

    Raises:
        InputError: for an unknown name.
    """
    strategies = {PLAIN: Comm()}
    for wire in config.wires.split(","):
        options = Comm(wire=check_value(Comm, "wire", wire.strip()))
        named = candidates(options, hosts)
        strategies |= {
            name if options.wire == "exact" else f"{options.wire}: {name}": way
            for name, way in named.items()
            if name != PLAIN
        }
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


def in_turns(
    model: DDP, replay: Replay, strategies: dict[str, Comm], config: ReplayConfig
) -> dict[str, Blocks]:
    """Return the step times of each strategy by turn, on every rank.

    Each step takes as long as on the slowest rank.
    """
    own: dict[str, Blocks] = {name: [] for name in strategies}
    for name in ddp_turns.order(strategies, config.rounds):
        # Gradients may be views of the previous strategy's buckets.
        model.zero_grad(set_to_none=True)
        accelerate_ddp(model, strategies[name])
        own[name].append(
            [replay.train_step(model) for _ in range(SETTLING_STEPS + config.block_steps)][
                SETTLING_STEPS:
            ]
        )
    return {
        name: stats.slowest_rank(process_group.all_ranks(blocks)) for name, blocks in own.items()
    }


def tuned(
    model: DDP, replay: Replay, strategies: dict[str, Comm], config: ReplayConfig
) -> dict[str, Blocks]:
    """Return the step times of DDP's own strategy and of the tuner's choice, by turn.

    A choice is measured again, beside DDP's own strategy: a best of several is likely to have had
    luck. Where DDP's own strategy is kept, the tuner's measurement of it stands.
    """
    tuner = Tuner(
        model, strategies, rounds=config.rounds, block_steps=config.block_steps, keep=False
    )
    while tuner.choice is None:
        replay.train_step(model)
    if tuner.choice == PLAIN:
        return {
            PLAIN: [[step / config.stretch for step in block] for block in tuner.measured[PLAIN]]
        }
    return in_turns(
        model, replay, {name: strategies[name] for name in (PLAIN, tuner.choice)}, config
    )


def measure(timeline: Timeline, config: ReplayConfig, choose: bool) -> dict[str, Any]:
    """Return the figures of one timeline, on every rank."""
    hosts = topology.find()
    replay = Replay(
        timeline, stretch=config.stretch, seed=process_group.rank(), share_gradients=True
    )
    model = DDP(replay, init_sync=False)  # no rank has values to broadcast
    alone = process_group.world_size() == 1
    strategies = {PLAIN: Comm()} if alone else ways(config, hosts)
    several = choose and len(strategies) > 1
    seconds = (tuned if several else in_turns)(model, replay, strategies, config)
    model.zero_grad(set_to_none=True)  # gradients may be views of buckets and keep them alive
    accelerate_ddp(model, Comm())  # ends the threads and process groups of the strategy
    return {
        "processes_by_host": [len(ranks) for ranks in hosts.hosts],
        "offered": list(strategies),
        "ways": ddp_turns.figures({name: strategies[name] for name in seconds}, seconds),
    }


def main() -> int:
    """Measure all timelines and return the exit code; rank 0 writes."""
    line = CommandLine("ddp_replay.py", __doc__ or "", (ReplayConfig,), operands=_operands)
    config, words = line.parse(sys.argv[1:])
    timelines = {path: read_timeline(path) for path in words.timelines}
    torch.set_num_threads(1)
    allocator.give_back()  # DDP makes its buckets anew at every turn
    process_group.ensure_initialized()
    for path, timeline in timelines.items():
        figures = measure(timeline, config, words.action == "tuned")
        gc.collect()
        if process_group.rank() == 0:
            about = {
                **dataclasses.asdict(timeline),
                "gradients": len(timeline.gradients),
                "gradient_bytes": timeline.gradient_bytes,
            }
            where = hardware.describe(hardware.machine_facts())
            write_result(
                words.out / path.name,
                {
                    "replay": dataclasses.asdict(config),
                    "timeline": about,
                    "replayed_on": where,
                    **figures,
                },
            )
    return 0


def _operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("turns", "tuned"),
        help="turns: every strategy in turns; tuned: DDP's own strategy and the tuner's choice",
    )
    parser.add_argument(
        "timelines", nargs="+", type=Path, metavar="TIMELINE.json", help="timelines to replay"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the figures, a file for each timeline"
    )


if __name__ == "__main__":
    code = exit_code_of(main, error_prefix="error", interrupted="stopped")
    sys.stdout.flush()
    os._exit(code)

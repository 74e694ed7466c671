r"""Ways to average gradients over a network: real training, and replays on emulated links.

    python -m torch.distributed.run --nproc_per_node 2 \
        benchmarks/network.py train --model resnet50 --precision amp --wire bf16
    python3 benchmarks/network.py record --model resnet50 --out timelines/resnet50.json
    python3 benchmarks/network.py run timelines/resnet50.json --ranks 4 --rate 1gbit --stretch 4 \
        --wires exact,bf16,int8

`train` lets DDP's own averaging and another one take turns in a training with real batches; its
options are those of `config.Comm`, and with --tune all lossless strategies take part. `record`
trains a few steps in one process. `run` brings up a lab, and replays the timeline on it in every
strategy. Its figures are those of a time-dilated replay on an emulated link, and say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import figures_file
import network_ranks as ranks

from gallery_lib import tasks
from gallery_lib.cluster import Lab, network
from gallery_lib.cluster.lab import run_on_hosts
from gallery_lib.config import Comm, LabConfig, LabRunConfig, TrainConfig
from gallery_lib.config.options import CommandLine, words_of
from gallery_lib.errors import InputError
from gallery_lib.measure.replay import Timeline, read_timeline, record, write_timeline
from gallery_lib.system import hardware

WHAT_IT_IS = (
    "Time-dilated replay on an emulated link. Communication between hosts is real, over links "
    "shaped to `rate` divided by `stretch`; computation is waiting, multiplied by `stretch`; times "
    "are divided by `stretch`. What this machine's own cores and memory do (sockets, copies, sums, "
    "all that stays within a host) is not stretched, "
    "so it counts for `stretch` times less than it takes here."
)
_PROCESS_BYTES, _TORCHRUN_BYTES, _SYSTEM_BYTES = 470e6, 300e6, 1e9
"""Memory of a process with torch and its sockets, of a host's torchrun, and of all else."""
_SHARED_PIECES_BYTES = 40 * 2**20
"""Largest pieces that one strategy has in flight at a time: two of 12 MiB, or one of 38."""


def stretched(config: LabConfig, stretch: float) -> LabConfig:
    """Return the lab for stretched time, whose links are slower.

    Each host gets all cores, since its computation is waiting.
    """
    rate = f"{network.bits_per_second(config.rate) / stretch / 1000:f}kbit"
    return dataclasses.replace(config, rate=rate, cpus=config.cpus or hardware.cores())


def too_large(timeline: Timeline, wires: str, hosts: int, processes: int) -> str:
    """Return why this machine cannot replay the timeline, or "".

    A rank holds its buckets, the largest gradient and, with other wire formats than exact, what
    error feedback keeps and the largest bucket as it is sent. A host of several ranks shares a
    piece of a bucket for each rank, and one more.
    """
    largest = max(max(gradient.bytes for gradient in timeline.gradients), 25 * 2**20)
    kept = 2 if "int8" in wires.split(",") else 1
    sent = largest * (1 if wires == "exact" else 2)
    of_rank = _PROCESS_BYTES + (1 + kept) * timeline.gradient_bytes + sent
    shared = (processes + 1 if processes > 1 else 0) * _SHARED_PIECES_BYTES
    needed = _SYSTEM_BYTES + hosts * (processes * of_rank + _TORCHRUN_BYTES + shared)
    there = hardware.memory_bytes()
    sizes = (
        f"about {needed / 2**30:.1f} GiB of memory on {hosts} hosts × {processes} processes, "
        f"and this machine has {there / 2**30:.1f} GiB"
    )
    return f"{timeline.task} needs {sizes}. Use fewer hosts or processes." if needed > there else ""


def _record(train: TrainConfig, words: argparse.Namespace) -> int:
    timeline = record(tasks.with_sizes(train, "quick"))
    write_timeline(words.out, timeline)
    size, step = timeline.gradient_bytes / 1e6, timeline.step_seconds
    print(f"{words.out}: {size:.1f} MB of gradients, {step:.3g} s a step without communication")
    return 0


def _run(config: ranks.ReplayConfig, lab: LabConfig, words: argparse.Namespace) -> int:
    timeline = read_timeline(words.timeline)
    if reason := too_large(timeline, config.wires, lab.hosts, words.ranks):
        raise InputError(reason, parameter="timeline")
    slower = stretched(lab, config.stretch)
    with TemporaryDirectory() as folder, Lab(slower.hosts, slower.rate, slower.cpus) as hosts:
        out = Path(folder) / "figures.json"
        replay = ["replay", str(words.timeline.resolve()), "--out", str(out), *words_of(config)]
        run_on_hosts(hosts, [__file__, *replay], LabRunConfig(nproc_per_node=words.ranks))
        found = json.loads(out.read_text())
    title = f"{timeline.task}: time-dilated replay (stretch {config.stretch:g}) on an emulated "
    print(f"{title}link of {lab.rate}; {timeline.origin}")
    device = "CPU" if timeline.environment["device"] == "cpu" else "GPU"  # that was recorded
    print(ranks.text(found["ways"], timeline.batch_size, found["processes_by_host"], device))
    values = {"what_it_is": WHAT_IT_IS, "rate": lab.rate, **found}
    heading = f"Replay of {timeline.task} on {lab.hosts} hosts, {lab.rate}"
    figures_file.write(words.out, values, heading, ranks.rows_of(found["ways"]))
    return 0


def main() -> int:
    """Run an action and return the exit code."""
    file: dict[str, Any] = {"type": figures_file.out_file}
    figures = {"--out": {**file, "help": "JSON file for the figures (default: printed only)"}}
    made = {"--out": {**file, "help": "JSON file for the timeline or figures", "required": True}}
    timeline = {"timeline": {"type": Path, "metavar": "TIMELINE.json", "help": "of `record`"}}
    text = "processes of each host; several can average hierarchically (default: 1)"
    number = figures_file.whole_number
    lab = {**timeline, **figures, "--ranks": {"type": number, "default": 1, "help": text}}
    actions: dict[str, tuple[tuple[type, ...], Any, Callable[..., int]]] = {
        "train": ((ranks.NetworkConfig, Comm), figures, ranks.train_in_turns),
        "record": ((TrainConfig,), made, _record),
        "run": ((ranks.ReplayConfig, LabConfig), lab, _run),
        "replay": ((ranks.ReplayConfig,), {**timeline, **made}, ranks.replay),
    }
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(__doc__)
        return 0
    if name not in actions:
        raise InputError(f"`{name}` must be {' or '.join(actions)}.", parameter="action")
    classes, operands, body = actions[name]
    # Labs of the benchmark have names of their own.
    line = CommandLine(f"network.py {name}", __doc__ or "", classes, operands, without=("name",))
    return body(*line.parse(sys.argv[2:]))


if __name__ == "__main__":
    code = figures_file.exit_code(main)
    sys.stdout.flush()
    if sys.argv[1:2] in (["train"], ["replay"]):
        os._exit(code)  # gloo's threads may wait for other ranks
    sys.exit(code)

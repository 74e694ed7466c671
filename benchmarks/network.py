r"""Ways to average gradients over a network: real training, and replays on emulated links.

    python -m torch.distributed.run --nproc_per_node 2 \
        benchmarks/network.py train --model resnet50 --precision amp --wire bf16
    python3 benchmarks/network.py record --model resnet50 --out timelines/resnet50.json
    python3 benchmarks/network.py run timelines/resnet50.json --ranks 4 --rate 1gbit --stretch 4 \
        --wires exact,bf16,int8
    python3 benchmarks/network.py sweep timelines/*.json --ranks 2 --rate 10gbit --stretch 8 \
        --out runs/sweep

`train` lets DDP's own averaging and another one take turns in a training with real batches; its
options are those of `config.Comm`, and with --tune all lossless strategies take part. `record`
trains a few steps in one process. `run` brings up a lab, and replays the timeline on it in every
strategy. `sweep` does so for all timelines × numbers of hosts, with the tuner choosing among the
lossless strategies.

A sweep that is begun again with the same folder measures what is missing, with another stretch for
another number of hosts if need be: more hosts on the same cores need a larger one. The notebook
performance_data shows its table. To publish it, copy `sweep.csv` and `settings.json` to
results/MACHINE/ as `sweep.csv` and `sweep.json`. Figures of `run` and `sweep` are those of a
time-dilated replay on an emulated link, and say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import figures_file
import network_ranks as ranks

from gallery_lib import tasks
from gallery_lib.cluster import Lab, link_rate
from gallery_lib.cluster.run import run as run_on_hosts
from gallery_lib.comm.tuner import PLAIN
from gallery_lib.config import (
    Comm,
    LabConfig,
    LabRunConfig,
    RecordConfig,
    ReplayConfig,
    TrainConfig,
)
from gallery_lib.config.command_line import CommandLine, words_of
from gallery_lib.config.options import check_value, option
from gallery_lib.errors import InputError
from gallery_lib.measure.replay.record import record
from gallery_lib.measure.replay.sweep import SETTINGS, TABLE, Cell, write_sweep
from gallery_lib.measure.replay.timeline import Timeline, read_timeline, write_timeline
from gallery_lib.system import hardware
from gallery_lib.system.json_files import write_json

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


@dataclass(frozen=True)
class Processes:
    """Processes of a replay on a lab."""

    ranks: int = option(1, unit="processes", minimum=1)
    """Processes of each host; several can average hierarchically."""
    hosts_of_sweep: str = "1,2,4,8"
    """With sweep: numbers of hosts, separated by commas."""


# --------------------------------------------------------------------------------------------------
# Replays on a lab


def stretched(config: LabConfig, stretch: float) -> LabConfig:
    """Return the lab for stretched time, whose links are slower.

    Each host gets all cores, since its computation is waiting.
    """
    rate = f"{link_rate.bits_per_second(config.rate) / stretch / 1000:f}kbit"
    return dataclasses.replace(config, rate=rate, cpus=config.cpus or hardware.cores())


def replayed(
    files: Sequence[Path],
    strategies: str,
    config: ReplayConfig,
    lab: LabConfig,
    nproc_per_node: int,
    out: Path,
) -> None:
    """Write OUT/NAME.json for each timeline NAME.json, as soon as it is measured."""
    words = ["replay", strategies, *map(str, files), "--out", str(out), *words_of(config)]
    slower = stretched(lab, config.stretch)
    with Lab(slower.hosts, slower.rate, slower.cpus) as hosts:
        run_on_hosts(hosts, [__file__, *words], LabRunConfig(nproc_per_node=nproc_per_node))


def too_large(timeline: Timeline, wires: str, hosts: int, processes: int) -> str:
    """Return why this machine cannot replay the timeline, or "".

    A rank holds its buckets, the largest gradient and, with other wire formats than exact, what
    error feedback keeps and the largest bucket as it is sent. A host of several ranks shares a
    piece of a bucket for each rank, and one more.
    """
    largest = max(max(gradient.bytes for gradient in timeline.gradients), 25 * 2**20)
    kept = 2 if {"int8", "powersgd"} & set(wires.split(",")) else 1
    of_rank = (
        _PROCESS_BYTES + kept * timeline.gradient_bytes + largest * (1 if wires == "exact" else 2)
    )
    shared = (processes + 1 if processes > 1 else 0) * _SHARED_PIECES_BYTES
    needed = _SYSTEM_BYTES + hosts * (processes * of_rank + _TORCHRUN_BYTES + shared)
    there = hardware.memory_bytes()
    sizes = (
        f"about {needed / 2**30:.1f} GiB of memory on {hosts} hosts × {processes} processes, "
        f"and this machine has {there / 2**30:.1f} GiB"
    )
    return f"{timeline.task} needs {sizes}. Use fewer hosts or processes." if needed > there else ""


def _record(train: TrainConfig, config: RecordConfig, words: argparse.Namespace) -> int:
    timeline = record(tasks.with_sizes(train, "quick"), config.steps)
    write_timeline(words.out, timeline)
    print(f"{words.out}: {timeline.described()}")
    return 0


def _run(
    config: ReplayConfig, lab: LabConfig, processes: Processes, words: argparse.Namespace
) -> int:
    path, *more = words.timelines
    if more:
        raise InputError("run takes one timeline; sweep takes several.", parameter="timelines")
    timeline = read_timeline(path)
    if reason := too_large(timeline, config.wires, lab.hosts, processes.ranks):
        raise InputError(reason, parameter="timelines")
    with TemporaryDirectory() as folder:
        replayed([path.resolve()], "turns", config, lab, processes.ranks, Path(folder))
        found = json.loads((Path(folder) / path.name).read_text())
    title = f"{timeline.task}: time-dilated replay (stretch {config.stretch:g}) on an emulated "
    print(f"{title}link of {lab.rate}; {timeline.origin}")
    device = "CPU" if timeline.environment["device"] == "cpu" else "GPU"  # that was recorded
    print(ranks.text(found["ways"], timeline.batch_size, found["processes_by_host"], device))
    values = {"what_it_is": WHAT_IT_IS, "rate": lab.rate, **found}
    heading = f"Replay of {timeline.task} on {lab.hosts} hosts, {lab.rate}"
    figures_file.write(words.out, values, heading, ranks.rows_of(found["ways"]))
    return 0


# --------------------------------------------------------------------------------------------------
# Sweeps


def measured_cells(
    folder: Path, timelines: Mapping[Path, Timeline], lab: LabConfig, processes: int
) -> dict[tuple[Path, int], Cell]:
    """Return what the sweep has measured, by timeline and number of hosts."""
    cells: dict[tuple[Path, int], Cell] = {}
    for path, timeline in timelines.items():
        files = {int(f.parent.name[:-6]): f for f in folder.glob(f"*-hosts/{path.name}")}
        alone: float | None = None
        for hosts, file in sorted(files.items()):
            figures = json.loads(file.read_text())
            ways = figures["ways"]
            choice = next((name for name in ways if name != PLAIN), PLAIN)
            # The speed-up is missing where DDP's own strategy was kept.
            ratio = ways[choice].get("speedup", {"ratio": 1.0, "low": 1.0, "high": 1.0})
            plain = ways[PLAIN]["step_seconds"]["p50"]
            alone = plain if hosts == 1 else alone
            cells[path, hosts] = Cell.of(
                timeline,
                hosts=hosts,
                ranks=processes,
                rate=lab.rate,
                stretch=figures["replay"]["stretch"],
                replayed_on=figures["replayed_on"],
                ddp_step_seconds=plain,
                chosen=choice,
                chosen_step_seconds=ways[choice]["step_seconds"]["p50"],
                acc_ratio=ratio["ratio"],
                acc_ratio_low=ratio["low"],
                acc_ratio_high=ratio["high"],
                ddp_acc=alone / plain if alone else None,
            )
    return cells


def _sweep(
    config: ReplayConfig, lab: LabConfig, processes: Processes, words: argparse.Namespace
) -> int:
    """Measure what is missing, and write the table after each number of hosts."""
    stretched(lab, config.stretch)  # refuses an invalid rate before anything is written
    folder, count = words.out, processes.ranks
    timelines = {path.resolve(): read_timeline(path) for path in words.timelines}
    if len({path.name for path in timelines}) < len(timelines):
        raise InputError("two timelines have the same file name.", parameter="timelines")
    numbers = processes.hosts_of_sweep.split(",")
    hosts_asked = sorted(check_value(LabConfig, "hosts", number) for number in numbers)
    # What has to be the same when the sweep is continued; the stretch may differ by hosts.
    options = {**dataclasses.asdict(config), "stretch": None}
    origins = {p.name: [t.date, t.origin, t.step_seconds] for p, t in timelines.items()}
    about = {"replay": options, "ranks": count, "rate": lab.rate, "timelines": origins}
    settings = folder / SETTINGS
    earlier = json.loads(settings.read_text()) if settings.exists() else {}
    if earlier and earlier["sweep"] != about:
        raise InputError(
            f"{folder} holds a sweep with other timelines or options. Name a new folder.",
            parameter="out",
        )
    cells = measured_cells(folder, timelines, lab, count)
    stretches = {hosts: cell.stretch for (_, hosts), cell in cells.items()}
    missing: dict[int, list[Path]] = {}
    reasons = []
    for hosts in hosts_asked:
        for path, timeline in timelines.items():
            if (path, hosts) in cells:
                continue
            if reason := too_large(timeline, config.wires, hosts, count):
                print(f"not measured: {reason}")
                reasons.append({"model": timeline.task, "hosts": hosts, "reason": reason})
            elif stretches.setdefault(hosts, config.stretch) != config.stretch:
                raise InputError(
                    f"{folder} holds figures of {hosts} hosts with stretch={stretches[hosts]:g}. "
                    "Continue with the same --stretch.",
                    parameter="stretch",
                )
            else:
                missing.setdefault(hosts, []).append(path)
    values = {"what_it_is": WHAT_IT_IS, "sweep": about, "not_measured": reasons}
    # The conditions are those of the measurement, not of looking at the figures again.
    conditions = figures_file.conditions() if missing or not earlier else earlier
    folder.mkdir(parents=True, exist_ok=True)
    write_json(settings, {**conditions, **values, "stretches": stretches})
    if cells:
        write_sweep(folder / TABLE, cells.values())
    for hosts, files in missing.items():
        out, on = folder / f"{hosts}-hosts", dataclasses.replace(lab, hosts=hosts)
        out.mkdir(exist_ok=True)
        try:
            replayed(files, "tuned", config, on, count, out)
        finally:  # what was measured before a failure gets its line
            write_sweep(folder / TABLE, measured_cells(folder, timelines, lab, count).values())
    print(f"figures: {folder / TABLE} and the files beside it")
    return 0


# --------------------------------------------------------------------------------------------------
# Command line


_TIMELINES: dict[str, Any] = {
    "timelines": {"nargs": "+", "type": Path, "metavar": "TIMELINE.json", "help": "of `record`"}
}


def main() -> int:
    """Run an action and return the exit code."""
    file: dict[str, Any] = {"type": figures_file.out_file}
    figures = {**file, "help": "JSON file for the figures (default: printed only)"}
    timeline = {**file, "help": "JSON file for the timeline", "required": True}
    needed: dict[str, Any] = {"type": Path, "required": True}
    folder = {**needed, "help": "folder of the sweep; what it lacks is measured"}
    lab = (ReplayConfig, LabConfig, Processes)
    of_train, of_record = (ranks.NetworkConfig, Comm), (TrainConfig, RecordConfig)
    kinds = {"strategies": {"choices": ("turns", "tuned")}}
    replayed = {**needed, "help": "folder for the figures"}
    actions: dict[str, tuple[tuple[type, ...], Any, Callable[..., int]]] = {
        "train": (of_train, {"--out": figures}, ranks.train_in_turns),
        "record": (of_record, {"--out": timeline}, _record),
        "run": (lab, {**_TIMELINES, "--out": figures}, _run),
        "sweep": (lab, {**_TIMELINES, "--out": folder}, _sweep),
        "replay": ((ReplayConfig,), {**kinds, **_TIMELINES, "--out": replayed}, ranks.replay),
    }
    lines = {
        name: CommandLine(
            f"network.py {name}",
            __doc__ or "",
            classes,
            operands,
            {"name": "labs of the benchmark have names of their own"},
        )
        for name, (classes, operands, _) in actions.items()
    }
    action = sys.argv[1] if len(sys.argv) > 1 else ""
    if action not in lines:
        CommandLine("network.py", __doc__ or "", actions=lines).parse(sys.argv[1:])
    return actions[action][-1](*lines[action].parse(sys.argv[2:]))


if __name__ == "__main__":
    code = figures_file.exit_code(main)
    sys.stdout.flush()
    if sys.argv[1:2] in (["train"], ["replay"]):
        os._exit(code)  # gloo's threads may wait for other ranks
    sys.exit(code)

r"""Gradient averaging on a cluster lab: recorded timelines replayed in real DDP on emulated links.

    python3 benchmarks/ddp_lab.py record --model resnet50 --out timelines/resnet50.json
    python3 benchmarks/ddp_lab.py run timelines/resnet50.json --ranks 4 --rate 1gbit --stretch 4 \
        --wires exact,bf16,int8
    python3 benchmarks/ddp_lab.py sweep timelines/*.json --ranks 2 --rate 10gbit --stretch 8 \
        --out runs/sweep
    python3 benchmarks/ddp_lab.py validate --model resnet18 --rate 100mbit --wire bf16
    python3 benchmarks/ddp_lab.py diff before.json after.json

`record` trains a few steps in one process. `run` brings up a lab and lets DDP's own strategy and
the others take turns. `sweep` does so for all timelines × numbers of hosts, with the tuner choosing
among the lossless strategies. `validate` trains for real and replays what was recorded there, in
turns, in the same processes.

A sweep that is begun again with the same folder goes on. It may have another stretch for another
number of hosts: more hosts on the same cores need a larger stretch. To go on with a committed
table, copy it to a new folder, as `sweep.csv` with `settings.json` beside it. Each line says which
machine replayed it. The notebook performance_data shows the table of a sweep. To publish it, copy
`sweep.csv` and `settings.json` to results/MACHINE/ as `sweep.csv` and `sweep.json`.

Figures of `run` and `sweep` are those of a time-dilated replay on an emulated link, and say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import ddp_turns
from common import conditions, out_file, write_result
from ddp_validate import DdpValidateConfig

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
    options,
)
from gallery_lib.config.options import CommandLine, option
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import InputError
from gallery_lib.measure.replay.record import record
from gallery_lib.measure.replay.repeated_memory import PIECE_BYTES
from gallery_lib.measure.replay.sweep import (
    SETTINGS,
    TABLE,
    Cell,
    read_sweep,
    recording_of,
    write_sweep,
)
from gallery_lib.measure.replay.timeline import Timeline, derived, read_timeline, write_timeline
from gallery_lib.system import hardware

HERE = Path(__file__).resolve().parent
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
class DdpLabConfig:
    """Processes of a run on a lab."""

    ranks: int = option(1, "processes on each host", unit="processes", minimum=1)
    hosts_of_sweep: str = option("1,2,4,8", "with sweep: numbers of hosts, with commas between")


def on_a_lab(lab_config: LabConfig, ranks: int, script: str, words: Sequence[str]) -> str:
    """Run a script of this folder on every host of a new lab, to its end.

    Return how the hosts got their CPU share.
    """
    with Lab(lab_config.hosts, lab_config.rate, lab_config.cpus) as lab:
        run_on_hosts(lab, [str(HERE / script), *words], LabRunConfig(nproc_per_node=ranks))
        return lab.cpu_share


def stretched(config: LabConfig, stretch: float) -> LabConfig:
    """Return the lab for stretched time, whose links are slower.

    Each host gets all cores, since its computation is waiting.
    """
    rate = f"{link_rate.bits_per_second(config.rate) / stretch / 1000:f}kbit"
    return dataclasses.replace(config, rate=rate, cpus=config.cpus or hardware.cores())


def replayed(
    files: Sequence[Path],
    action: str,
    config: ReplayConfig,
    lab: LabConfig,
    processes: DdpLabConfig,
    out: Path,
) -> None:
    """Write OUT/NAME.json for each timeline NAME.json, as soon as it is measured."""
    words = [action, *map(str, files), "--out", str(out), *options.command_line(config)]
    on_a_lab(stretched(lab, config.stretch), processes.ranks, "ddp_replay.py", words)


def memory_bytes(timeline: Timeline, wires: str, hosts: int, ranks: int) -> float:
    """Return about how many bytes a replay takes on this machine.

    Each rank holds its buckets and a piece of what is being made. With other wire formats than
    exact it also holds what error feedback keeps, and the largest bucket as it is sent. Each host
    holds torchrun and the shared memory of hierarchical averaging: a piece of a bucket for each
    rank, and one more.
    """
    largest = max(max(each.bytes for each in timeline.gradients), 25 * 2**20)
    kept = 2 if {"int8", "powersgd"} & set(wires.split(",")) else 1
    sent = 0 if wires == "exact" else largest
    of_rank = _PROCESS_BYTES + kept * timeline.gradient_bytes + min(largest, PIECE_BYTES) + sent
    return _SYSTEM_BYTES + hosts * (
        ranks * of_rank + _TORCHRUN_BYTES + (ranks + 1 if ranks > 1 else 0) * _SHARED_PIECES_BYTES
    )


def too_large(timeline: Timeline, wires: str, hosts: int, ranks: int) -> str:
    """Return why this machine cannot replay the timeline, or ""."""
    needed, there = memory_bytes(timeline, wires, hosts, ranks), hardware.memory_bytes()
    sizes = (
        f"about {needed / 2**30:.1f} GiB of memory on {hosts} hosts × {ranks} processes, "
        f"and there are {there / 2**30:.1f}"
    )
    return f"{timeline.task} needs {sizes}. Use fewer." if needed > there else ""


def device_of(timeline: dict[str, Any]) -> str:
    """Return the kind of device that computed in the recorded run: GPU or CPU."""
    return "CPU" if timeline["environment"]["device"] == "cpu" else "GPU"


def shown(found: dict[str, Any]) -> str:
    """Return the figures of a replay as text that says what they are."""
    timeline, replay = found["timeline"], found["replay"]
    size = f"{timeline['gradient_bytes'] / 1e6:.1f} MB of gradients, {timeline['origin']}"
    head = (
        f"{timeline['task']} ({size}): time-dilated replay (stretch {replay['stretch']:g}) on an "
        f"emulated link of {found['rate']}"
    )
    batch_size = timeline["settings"]["batch_size"]
    return (
        f"{head}\n"
        f"""{
            ddp_turns.text(
                found["ways"], batch_size, found["processes_by_host"], device_of(timeline)
            )
        }"""
    )


def _record(train: TrainConfig, config: RecordConfig, words: argparse.Namespace) -> int:
    if config.times != 1 and not config.reason:
        raise InputError(
            "times makes a timeline of a device that was not recorded: say which with --reason."
        )
    timeline = record(tasks.with_sizes(train, "quick"), config.steps)
    if config.times != 1:
        timeline = derived(timeline, config.times, config.reason)
    write_timeline(words.out, timeline)
    print(f"{words.out}: {timeline.described()}")
    return 0


def _run(
    config: ReplayConfig, lab: LabConfig, processes: DdpLabConfig, words: argparse.Namespace
) -> int:
    if reason := too_large(read_timeline(words.timeline), config.wires, lab.hosts, processes.ranks):
        raise InputError(reason)
    with TemporaryDirectory() as folder:
        replayed([words.timeline.resolve()], "turns", config, lab, processes, Path(folder))
        found = {"rate": lab.rate, **json.loads((Path(folder) / words.timeline.name).read_text())}
    print(shown(found))
    if words.out:
        write_result(words.out, {**conditions(), "what_it_is": WHAT_IT_IS, **found})
        print(f"figures: {words.out}")
    return 0


def cell(
    found: dict[str, Any], timeline: Timeline, lab: LabConfig, processes: DdpLabConfig
) -> Cell:
    """Return a line of the sweep's table.

    `ddp_acc` needs the line of one host as well, and is left out.
    """
    ways = found["ways"]
    chosen = next((name for name in ways if name != PLAIN), PLAIN)
    ddp, ours = ways[PLAIN]["step_seconds"]["p50"], ways[chosen]["step_seconds"]["p50"]
    # The speed-up is missing where DDP's own strategy was kept.
    ratio = ways[chosen].get("speedup", {"ratio": 1.0, "low": 1.0, "high": 1.0})
    return Cell.of(
        timeline,
        **{
            "hosts": lab.hosts,
            "ranks": processes.ranks,
            "rate": lab.rate,
            "stretch": found["replay"]["stretch"],
        },
        **{"ddp_step_seconds": ddp, "chosen": chosen, "chosen_step_seconds": ours},
        **{
            "acc_ratio": ratio["ratio"],
            "acc_ratio_low": ratio["low"],
            "acc_ratio_high": ratio["high"],
        },
        **{"ddp_acc": None, "replayed_on": found["replayed_on"]},
    )


def _sweep(
    config: ReplayConfig, lab: LabConfig, processes: DdpLabConfig, words: argparse.Namespace
) -> int:
    stretched(lab, config.stretch)  # refuses an invalid rate before anything is written
    timelines = {path.resolve(): read_timeline(path) for path in words.timelines}
    if len({path.name for path in timelines}) < len(timelines):
        raise InputError(
            "two of the timelines have the same file name: what is measured is kept by that."
        )
    asked = sorted(
        options.check_value(LabConfig, "hosts", number)
        for number in processes.hosts_of_sweep.split(",")
    )
    replay = {
        name: value for name, value in dataclasses.asdict(config).items() if name != "stretch"
    }
    about = {"replay": replay, "ranks": processes.ranks, "rate": lab.rate, "timelines": {}}
    about["timelines"] = {
        path.name: [each.date, each.origin, each.step_seconds] for path, each in timelines.items()
    }
    settings = words.out / SETTINGS
    before = json.loads(settings.read_text()) if settings.exists() else {}
    if before and before["sweep"] != about:
        raise InputError(
            f"{words.out} holds a sweep with other timelines or options. Name a new folder."
        )
    there = _measured(words.out, timelines, lab, processes)
    numbers = sorted({*asked, *(hosts for _, hosts in there)})
    missing = [
        (path, hosts) for hosts in numbers for path in timelines if (path, hosts) not in there
    ]
    reasons = {
        (path, hosts): too_large(timelines[path], config.wires, hosts, processes.ranks)
        for path, hosts in missing
    }
    left = {
        number: [path for path, hosts in missing if hosts == number and not reasons[path, hosts]]
        for number in asked
    }
    not_measured = [
        {"model": timelines[path].task, "hosts": hosts, "reason": why}
        for (path, hosts), why in reasons.items()
        if why
    ]
    stretches = dict.fromkeys(asked, config.stretch) | {
        hosts: each.stretch for (_, hosts), each in there.items()
    }
    for hosts in asked:
        if left[hosts] and stretches[hosts] != config.stretch:
            raise InputError(
                f"{words.out} holds figures of {hosts} hosts with stretch={stretches[hosts]:g}. "
                "Go on with that."
            )
    for hosts in asked:
        _of_hosts(words.out, hosts).mkdir(parents=True, exist_ok=True)
    # The conditions are those of the measurement, not of looking at the figures again.
    kept = {} if any(left.values()) else before
    write_result(
        settings,
        {
            **conditions(),
            **kept,
            "what_it_is": WHAT_IT_IS,
            "sweep": about,
            "stretches": stretches,
            "not_measured": not_measured,
        },
    )
    for each in not_measured:
        print(f"not measured: {each['reason']}")
    for hosts, paths in left.items():
        try:
            if paths:
                replayed(
                    paths,
                    "tuned",
                    config,
                    dataclasses.replace(lab, hosts=hosts),
                    processes,
                    _of_hosts(words.out, hosts),
                )
        finally:  # what was measured before a failure gets its line
            if measured := _measured(words.out, timelines, lab, processes):
                _write_table(words.out, measured)
    print(f"figures: {words.out / TABLE} and the files beside it")
    return 0


def _of_hosts(folder: Path, hosts: int) -> Path:
    """Return the folder of what a sweep has measured on so many hosts."""
    return folder / f"{hosts}-hosts"


def _measured(
    folder: Path, timelines: dict[Path, Timeline], lab: LabConfig, processes: DdpLabConfig
) -> dict[tuple[Path, int], Cell]:
    """Return what a sweep has measured, by timeline and number of hosts.

    First come the lines of its table: a committed table may have been copied to be gone on with.
    Then come the figures in the folders of the sweep.
    """
    found: dict[tuple[Path, int], Cell] = {}
    if (folder / TABLE).exists():
        paths = {recording_of(timeline): path for path, timeline in timelines.items()}
        for each in read_sweep(folder / TABLE).cells:
            if each.recording not in paths:
                raise InputError(
                    f"{folder / TABLE} has a line of {each.model} that is of none of the "
                    "timelines. Name a new folder."
                )
            found[paths[each.recording], each.hosts] = each
    for measured in folder.glob("*-hosts"):
        hosts = int(measured.name.removesuffix("-hosts"))
        for path, timeline in timelines.items():
            if (measured / path.name).exists():
                figures = json.loads((measured / path.name).read_text())
                found[path, hosts] = cell(
                    figures, timeline, dataclasses.replace(lab, hosts=hosts), processes
                )
    order = list(timelines)
    return dict(sorted(found.items(), key=lambda each: (order.index(each[0][0]), each[0][1])))


def _write_table(folder: Path, measured: dict[tuple[Path, int], Cell]) -> None:
    """Write the table, with `ddp_acc` where one host has been measured."""
    alone = {path: each.ddp_step_seconds for (path, hosts), each in measured.items() if hosts == 1}
    write_sweep(
        folder / TABLE,
        (
            dataclasses.replace(
                each, ddp_acc=alone[path] / each.ddp_step_seconds if path in alone else None
            )
            for (path, _), each in measured.items()
        ),
    )


def _validate(
    config: DdpValidateConfig,
    way: Comm,
    lab: LabConfig,
    processes: DdpLabConfig,
    words: argparse.Namespace,
) -> int:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "validation.json"
        asked = options.command_line(config, way)
        share = on_a_lab(lab, processes.ranks, "ddp_validate.py", ["--out", str(file), *asked])
        found = json.loads(file.read_text())
    where = (
        f"{lab.hosts} hosts × {processes.ranks} processes, emulated link of {lab.rate}, "
        f"CPU share: {share}"
    )
    print(f"{found['timeline']['task']} on {where}")
    for name, figures in found["ways"].items():
        real, replay, ratio = (
            figures["real_p50_seconds"],
            figures["replay_p50_seconds"],
            figures["replay_over_real"],
        )
        interval = (
            f"(interval {ratio['low']:.2f} to {ratio['high']:.2f}): "
            f"{'' if figures['within_15_percent'] else 'not '}within 15 %"
        )
        print(
            f"  {name}: real {real:.3f} s, replay {replay:.3f} s; replay / real "
            f"{ratio['ratio']:.2f} {interval}"
        )
    if words.out:
        write_result(words.out, {**conditions(), "rate": lab.rate, "cpu_share": share, **found})
        print(f"figures: {words.out}")
    return 0


def _out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=out_file, help="file for the figures, as JSON")


def _out_of_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=out_file, required=True, help="file for the timeline, as JSON"
    )


def _of_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("timeline", type=Path, metavar="TIMELINE.json", help="what is replayed")
    _out(parser)


def _of_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "timelines", nargs="+", type=Path, metavar="TIMELINE.json", help="what is replayed"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for the figures; one that is there is gone on with",
    )


def main() -> int:
    """Run an action and return the exit code."""
    if sys.argv[1:2] == ["diff"]:
        if len(sys.argv) != 4:
            raise InputError("diff takes two files: diff BEFORE.json AFTER.json")
        return ddp_turns.diff(Path(sys.argv[2]), Path(sys.argv[3]))
    its_name = {"name": LabConfig().name}  # labs of the benchmark have names of their own
    lines = {
        "record": (
            CommandLine(
                "ddp_lab.py record",
                "Record a timeline.",
                (TrainConfig, RecordConfig),
                _out_of_record,
            ),
            _record,
        ),
        "run": (
            CommandLine(
                "ddp_lab.py run",
                "Replay one.",
                (ReplayConfig, LabConfig, DdpLabConfig),
                _of_run,
                its_name,
            ),
            _run,
        ),
        "sweep": (
            CommandLine(
                "ddp_lab.py sweep",
                "Replay many.",
                (ReplayConfig, LabConfig, DdpLabConfig),
                _of_sweep,
                its_name,
            ),
            _sweep,
        ),
        "validate": (
            CommandLine(
                "ddp_lab.py validate",
                "Replay / real.",
                (DdpValidateConfig, Comm, LabConfig, DdpLabConfig),
                _out,
                its_name,
            ),
            _validate,
        ),
    }
    action = sys.argv[1] if len(sys.argv) > 1 else ""
    if action not in lines:
        CommandLine(
            "ddp_lab.py", __doc__ or "", actions={name: line for name, (line, _) in lines.items()}
        ).parse(sys.argv[1:])
    line, carry_out = lines[action]
    return carry_out(*line.parse(sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(
        exit_code_of(
            main,
            error_prefix="error",
            interrupted="stopped: every process of the lab has been ended",
        )
    )

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

A sweep that is begun again with the same folder measures what is missing. It may have another
stretch for another number of hosts: more hosts on the same cores need a larger stretch. To continue
a committed table, copy it to a new folder, as `sweep.csv` with `settings.json` beside it. Each line
says which machine replayed it. The notebook performance_data shows the table of a sweep. To publish
it, copy `sweep.csv` and `settings.json` to results/MACHINE/ as `sweep.csv` and `sweep.json`.

Figures of `run` and `sweep` are those of a time-dilated replay on an emulated link, and say so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import ddp_turns
from ddp_on_lab import WHAT_IT_IS, DdpLabConfig, on_a_lab, replayed, too_large
from ddp_sweep import plan_sweep, sweep
from ddp_validate import DdpValidateConfig
from figures_file import conditions, out_file, write_result

from gallery_lib import tasks
from gallery_lib.config import Comm, LabConfig, RecordConfig, ReplayConfig, TrainConfig
from gallery_lib.config.command_line import CommandLine, words_of
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import InputError
from gallery_lib.measure.replay.record import record
from gallery_lib.measure.replay.timeline import derived, read_timeline, write_timeline


def _record(train: TrainConfig, config: RecordConfig, words: argparse.Namespace) -> int:
    if config.times != 1 and not config.reason:
        raise InputError(
            "--times makes a timeline of a device that was not recorded: say which with --reason.",
            parameter="reason",
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
        raise InputError(reason, parameter="timeline")
    with TemporaryDirectory() as folder:
        replayed([words.timeline.resolve()], "turns", config, lab, processes, Path(folder))
        figures = json.loads((Path(folder) / words.timeline.name).read_text())
    figures = {"rate": lab.rate, **figures}
    print(replay_text(figures))
    if words.out:
        write_result(words.out, {**conditions(), "what_it_is": WHAT_IT_IS, **figures})
        print(f"figures: {words.out}")
    return 0


def replay_text(figures: dict[str, Any]) -> str:
    """Return the figures of a replay as text that says what they are."""
    timeline, stretch = figures["timeline"], figures["replay"]["stretch"]
    size = f"{timeline['gradient_bytes'] / 1e6:.1f} MB of gradients, {timeline['origin']}"
    device = "CPU" if timeline["environment"]["device"] == "cpu" else "GPU"  # that was recorded
    ways = ddp_turns.text(
        figures["ways"],
        timeline["settings"]["batch_size"],
        figures["processes_by_host"],
        device,
    )
    return (
        f"{timeline['task']} ({size}): time-dilated replay (stretch {stretch:g}) on an emulated "
        f"link of {figures['rate']}\n{ways}"
    )


def _sweep(
    config: ReplayConfig, lab: LabConfig, processes: DdpLabConfig, words: argparse.Namespace
) -> int:
    sweep(plan_sweep(config, lab, processes, words.timelines, words.out))
    return 0


def _validate(
    config: DdpValidateConfig,
    way: Comm,
    lab: LabConfig,
    processes: DdpLabConfig,
    words: argparse.Namespace,
) -> int:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "validation.json"
        options = ["--out", str(file), *words_of(config, way)]
        share = on_a_lab(lab, processes.ranks, "ddp_validate.py", options)
        figures = json.loads(file.read_text())
    print(
        f"{figures['timeline']['task']} on {lab.hosts} hosts × {processes.ranks} processes, "
        f"emulated link of {lab.rate}, CPU share: {share}"
    )
    for name, way_figures in figures["ways"].items():
        print(f"  {name}: {_agreement(way_figures)}")
    if words.out:
        write_result(words.out, {**conditions(), "rate": lab.rate, "cpu_share": share, **figures})
        print(f"figures: {words.out}")
    return 0


def _agreement(figures: dict[str, Any]) -> str:
    """Return real and replayed step time of a strategy, their ratio, and whether they agree."""
    ratio, agrees = figures["replay_over_real"], figures["within_15_percent"]
    return (
        f"real {figures['real_p50_seconds']:.3f} s, replay {figures['replay_p50_seconds']:.3f} s; "
        f"replay / real {ratio['ratio']:.2f} "
        f"(interval {ratio['low']:.2f} to {ratio['high']:.2f}): "
        f"{'' if agrees else 'not '}within 15 %"
    )


def _figures_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=out_file, help="JSON file for the figures (default: printed only)"
    )


def _timeline_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=out_file, required=True, help="JSON file for the timeline; overwritten"
    )


def _one_timeline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "timeline", type=Path, metavar="TIMELINE.json", help="timeline to replay, made by `record`"
    )
    _figures_file(parser)


def _timelines(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "timelines",
        nargs="+",
        type=Path,
        metavar="TIMELINE.json",
        help="timelines to replay, made by `record`; each takes minutes on each number of hosts",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for the figures; name the folder of an earlier sweep to measure what it lacks",
    )


def _actions() -> dict[str, tuple[CommandLine, Callable[..., int]]]:
    """Return the command line of each action, and the function that carries it out."""
    own_name = {"name": LabConfig().name}  # labs of the benchmark have names of their own
    replay = (ReplayConfig, LabConfig, DdpLabConfig)
    validation = (DdpValidateConfig, Comm, LabConfig, DdpLabConfig)
    record_summary = "Train a few steps in one process and record their timeline."
    run_summary = "Replay one timeline, all strategies in turns."
    sweep_summary = "Replay timelines on several numbers of hosts; the tuner chooses the strategy."
    validate_summary = "Hold a replay against the real training that it was recorded from."
    record_line = CommandLine(
        "ddp_lab.py record", record_summary, (TrainConfig, RecordConfig), _timeline_file
    )
    run_line = CommandLine("ddp_lab.py run", run_summary, replay, _one_timeline, own_name)
    sweep_line = CommandLine("ddp_lab.py sweep", sweep_summary, replay, _timelines, own_name)
    validate_line = CommandLine(
        "ddp_lab.py validate", validate_summary, validation, _figures_file, own_name
    )
    return {
        "record": (record_line, _record),
        "run": (run_line, _run),
        "sweep": (sweep_line, _sweep),
        "validate": (validate_line, _validate),
    }


def main() -> int:
    """Run an action and return the exit code."""
    if sys.argv[1:2] == ["diff"]:
        if len(sys.argv) != 4:
            raise InputError("diff takes two files: diff BEFORE.json AFTER.json", parameter="files")
        return ddp_turns.diff(Path(sys.argv[2]), Path(sys.argv[3]))
    actions = _actions()
    action = sys.argv[1] if len(sys.argv) > 1 else ""
    if action not in actions:
        CommandLine(
            "ddp_lab.py", __doc__ or "", actions={name: line for name, (line, _) in actions.items()}
        ).parse(sys.argv[1:])
    line, carry_out = actions[action]
    return carry_out(*line.parse(sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(
        exit_code_of(
            main,
            error_prefix="error",
            interrupted="stopped: every process of the lab has been ended",
        )
    )

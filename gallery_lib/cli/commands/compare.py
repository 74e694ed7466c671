"""Command `gallery compare`: baseline against accelerated backend, or two batches."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Sequence

from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.config.command_line import CommandLine
from gallery_lib.errors import InputError
from gallery_lib.system import hardware


def _compare_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "batches",
        nargs="*",
        metavar="BATCH",
        help="none, or two: before and after, instead of any option",
    )


_LENGTH = "it trains for warmup_steps + rounds × block_steps steps"
_ONE_HOST = "the variants take turns on one host; launch_single_task.py trains on several"
_UNDISTURBED = "it compares undisturbed steps; launch_single_task.py has it"
_HOSTS = ("nnodes", "node_rank", "master_addr", "master_port", "rdzv_endpoint", "rdzv_id")
_FIXED = {
    "compiler_opt": "it trains with and without",
    "dry_run": "launch_single_task.py has it",
    "run_dir": "it makes a new folder below runs/; GALLERY_RUNS_DIR chooses another place",
    "log_interval": "it logs every step",
    **dict.fromkeys(("max_steps", "epochs"), _LENGTH),
    **dict.fromkeys(("checkpoint_every", "keep", "resume", "max_restarts"), _UNDISTURBED),
    **dict.fromkeys(_HOSTS, _ONE_HOST),
}

LINE = CommandLine(
    "gallery compare",
    "Train a task as baseline and with the accelerated backend, in turns, "
    "and say what the difference is.\n"
    "`gallery compare BEFORE AFTER`, with two folders of `gallery run` or `prepare.sh --run`, "
    "or two files in\n"
    "benchmarks/results/, compares those.",
    (TrainConfig, LaunchConfig, CompareConfig),
    _compare_operands,
    _FIXED,
)


def _compare_batches(before: str, after: str) -> int:
    from gallery_lib.notebooks.batch import changes

    batches = changes.read_batch(before), changes.read_batch(after)
    print(changes.text(*batches))
    return 1 if any(change.regression for change in changes.changes(*batches)) else 0


def main(arguments: Sequence[str]) -> int | None:
    """Run the command with these words behind it, and return the exit code."""
    config, launch_config, compare_config, namespace = LINE.parse(arguments)
    if namespace.batches:
        if len(arguments) != 2 or len(namespace.batches) != 2:
            raise InputError(
                "gallery compare takes two batches and no option, or options alone; "
                f"got {' '.join(arguments)}.",
                parameter="batches",
            )
        return _compare_batches(*namespace.batches)
    from gallery_lib.console.progress import Progress

    with Progress() as progress:
        with progress.importing():
            from gallery_lib.launcher.commands import shown_command
            from gallery_lib.measure.comparison.compare import compare_backend
            from gallery_lib.report import tables
            from gallery_lib.train import precision
        progress.say(f"precision of both: {precision.described(config, hardware.device_type())}")
        comparison = compare_backend(config, launch_config, compare_config, progress=progress)
    print(tables.comparison_text(comparison, details=False))
    same = dataclasses.replace(
        config, compiler_opt=True, amp_level=comparison.candidate.config["amp_level"]
    )
    print("Next: all tables of this comparison; a training with the accelerated backend:")
    print(f"  {shlex.join([sys.argv[0], 'show', comparison.folder])}")
    print(f"  {shown_command(same, launch_config)}")
    return None

"""Command `gallery doctor`: what this machine offers, and where the time of a step went.

With `--roofline TASK` it measures: how near each group of operators is to the machine's limits.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from gallery_lib.config import RooflineConfig, TrainConfig
from gallery_lib.config.command_line import CommandLine
from gallery_lib.console.signals import importing
from gallery_lib.errors import InputError


def _doctor_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="RUN",
        help="a run, a comparison or a notebook's folder",
    )


_FEW_STEPS = "it trains a few steps on one batch"
_FIXED = {
    "model": "--roofline names the task",
    "run_dir": "--out names the folder",
    **dict.fromkeys(
        (
            *("max_steps", "epochs", "evaluate", "save_weights", "log_interval", "tensorboard"),
            *("checkpoint_every", "keep", "resume", "terminate_on_nan", "rank_timeout"),
            *("lr_schedule", "lr_warmup_steps", "lr_step_size", "lr_schedule_steps"),
            *("pretrained", "init_from"),
        ),
        _FEW_STEPS,
    ),
}

LINE = CommandLine(
    "gallery doctor",
    "What this machine offers; where a run's step went, and what to change.\n"
    "With --roofline TASK: how near a training step is to this machine's limits, group by group "
    "of operators.",
    (RooflineConfig, TrainConfig),
    _doctor_operands,
    _FIXED,
)


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words behind it."""
    roofline_config, config, namespace = LINE.parse(arguments)
    if roofline_config.roofline is not None:
        if namespace.folder:
            raise InputError(
                f"--roofline {roofline_config.roofline} measures a task, and takes no folder: "
                f"leave out {namespace.folder}.",
                parameter="folder",
            )
        _roofline(roofline_config, dataclasses.replace(config, model=roofline_config.roofline))
        return
    if option := next((word for word in arguments if word.startswith("-")), None):
        raise InputError(
            f"gallery doctor takes {option.split('=')[0]} only with --roofline TASK.",
            parameter=option.split("=")[0].lstrip("-").replace("-", "_"),
        )
    with importing():
        from gallery_lib.report.doctor import text

    print(text(namespace.folder))


def _roofline(asked: RooflineConfig, config: TrainConfig) -> None:
    """Measure, print the tables, and draw the picture."""
    from gallery_lib.console.progress import Progress, busy

    with Progress() as progress:
        with progress.importing():
            from gallery_lib.measure.profile.roofline.measure import measure
            from gallery_lib.report import style
            from gallery_lib.report.roofline import chart, text
        folder, roofline = measure(config, asked, progress=progress)
    with busy("picture"):
        style.save(chart(roofline).draw(), folder / "roofline.png")
    print(text(roofline))
    print(f"results: {folder}/roofline.json, picture: roofline.png")

"""Runs of `launch_single_task.py` from a task's notebook: each command, and what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gallery_lib.config import LaunchConfig
from gallery_lib.console.table import markdown_table, number
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells.comparison import batch_shared_by
from gallery_lib.notebooks.cells.display import display_markdown
from gallery_lib.notebooks.cells.task_settings import Settings

if TYPE_CHECKING:
    from gallery_lib.train.results import Results


_STEPS = 6
"""Training steps of a run, unless others are asked for: enough to see that it trains."""


def launch(
    settings: Settings, *, processes: int, compiler_opt: bool, steps: int | None = None
) -> Results:
    """Run `launch_single_task.py` with the notebook's options, and return what it measured.

    The exact command is shown. Processes that share the cores of one CPU share the batch.

    Args:
        settings: the notebook's settings.
        processes: how many train together, with DistributedDataParallel.
        compiler_opt: the accelerated backend, as `--compiler-opt` asks for it.
        steps: training steps; None: a few, to see that it trains.

    Raises:
        InputError: for options that cannot work here.
        RunFailed: when a process fails.
    """
    from gallery_lib.launcher.job import launch as launch_job

    train = dataclasses.replace(
        batch_shared_by(settings, processes) if processes > 1 else settings.train,
        compiler_opt=compiler_opt,
        evaluate=False,
        max_steps=steps or _STEPS,
        warmup_steps=1,
    )
    results = launch_job(train, LaunchConfig(nproc_per_node=processes), show_log=False)
    assert results is not None
    return results


def show_runs(runs: Sequence[Results]) -> None:
    """Show a table of runs that followed one another: what they trained, and that they learned.

    Raises:
        InputError: without a run.
    """
    if not runs:
        raise InputError("there is no run to show: run the cell above.", parameter="runs")
    rows = [["processes", "--compiler-opt", "steps", "loss, first → last", "start-up"]]
    for run in runs:
        losses = [run.loss[name] for name in ("first", "last")]
        rows.append(
            [
                str(run.world_size),
                "yes" if run.config["compiler_opt"] else "no",
                str(run.steps),
                " → ".join("not finite" if loss is None else number(loss) for loss in losses),
                f"{number(run.startup_seconds['total'])} s",
            ]
        )
    display_markdown(markdown_table(rows))

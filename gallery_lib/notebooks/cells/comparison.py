"""The measurement in turns in a task's notebook, and what it shows of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gallery_lib.config import LaunchConfig
from gallery_lib.console.table import markdown_table
from gallery_lib.notebooks.cells.display import display_figure, display_markdown
from gallery_lib.notebooks.cells.task_settings import Settings
from gallery_lib.report import tables
from gallery_lib.system import hardware

if TYPE_CHECKING:
    from gallery_lib.config import TrainConfig
    from gallery_lib.measure.comparison.result import Comparison


@dataclasses.dataclass(frozen=True)
class NotMeasured:
    """A comparison that this machine cannot make. `because` is the rest of a sentence."""

    because: str


def compare(settings: Settings, processes: int) -> Comparison:
    """Compare the baseline with the accelerated backend on `processes` processes, in turns."""
    from gallery_lib.measure.comparison.compare import compare_backend

    train = dataclasses.replace(settings.train, save_weights=settings.task.predictions is not None)
    return compare_backend(train, LaunchConfig(nproc_per_node=processes), settings.compare)


def batch_shared_by(settings: Settings, processes: int) -> TrainConfig:
    """Return the run's options with the batch size of one of several processes.

    Each GPU takes a whole batch. Processes that share the cores of one CPU share the batch as well.
    """
    from gallery_lib import tasks

    if hardware.device_type() != "cpu":
        return settings.train
    together = tasks.with_sizes(settings.train).batch_size or 1
    item = settings.task.samples_per_item
    batch_size = max(1, together // item // processes) * item
    return dataclasses.replace(settings.train, batch_size=batch_size)


def compare_on_several(settings: Settings) -> Comparison | NotMeasured:
    """Compare on all devices, in half as many turns and without evaluation.

    Returns NotMeasured where there is one device, or too little memory for two variants on several.
    """
    from gallery_lib.measure.comparison.compare import compare_backend
    from gallery_lib.tasks import memory_estimate

    if settings.processes == 1:
        return NotMeasured("this machine has one device, so there is no run on several.")
    train = dataclasses.replace(batch_shared_by(settings, settings.processes), evaluate=False)
    fewer = dataclasses.replace(
        settings.compare,
        rounds=max(4, settings.compare.rounds // 2),
        block_steps=min(settings.compare.block_steps, max(3, settings.compare.block_steps // 2)),
    )
    launch = LaunchConfig(nproc_per_node=settings.processes)
    try:
        return compare_backend(train, launch, fewer)
    except memory_estimate.DoesNotFit as error:
        return NotMeasured(str(error))


def show_comparison(comparison: Comparison | NotMeasured) -> None:
    """Show the verdict, with the tables folded."""
    if isinstance(comparison, NotMeasured):
        display_markdown(f"**Not measured**: {comparison.because}")
        return
    display_markdown(tables.comparison_markdown(comparison))


def show_throughput(comparison: Comparison) -> None:
    """Show the throughput since launch."""
    from gallery_lib.report import plots

    display_figure(
        plots.throughput(comparison),
        plots.throughput_text(comparison),
        plots.throughput_rows(comparison),
    )


def show_losses(comparison: Comparison) -> None:
    """Show the loss curves of both variants."""
    from gallery_lib.report import plots

    display_figure(
        plots.losses(comparison), plots.losses_text(comparison), plots.losses_rows(comparison)
    )


def show_step_times(comparison: Comparison) -> None:
    """Show the distributions of step times."""
    from gallery_lib.report import plots

    display_figure(
        plots.step_times(comparison),
        plots.step_times_text(comparison),
        plots.step_times_rows(comparison),
    )


def show_break_even(comparison: Comparison) -> None:
    """Show when the longer start-up has paid off, or why it has not."""
    from gallery_lib.report import plots, verdict

    if comparison.break_even_steps is None:
        display_markdown(verdict.break_even_line(comparison))
        return
    display_figure(
        plots.break_even(comparison),
        plots.break_even_text(comparison),
        plots.break_even_rows(comparison),
    )


def show_scaling(one: Comparison, several: Comparison | NotMeasured) -> None:
    """Show one process beside several: total rates, and how well the rates add up."""
    if isinstance(several, NotMeasured):
        show_comparison(several)
        return
    display_markdown(tables.scaling_markdown(one, several))


def show_techniques(comparison: Comparison) -> None:
    """Show what the backend did in this run."""
    display_markdown(markdown_table(tables.techniques_rows(comparison.candidate.techniques)))

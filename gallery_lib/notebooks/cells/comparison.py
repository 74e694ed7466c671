"""Runs and comparisons of a task's notebook, in processes of their own, and their tables."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig, options
from gallery_lib.console.table import markdown_table, number
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells.display import NotMeasured, display_chart, display_markdown
from gallery_lib.notebooks.cells.task_settings import Settings
from gallery_lib.report import tables
from gallery_lib.system import hardware, paths
from gallery_lib.system.json_files import read_json, write_json
from gallery_lib.train.results import busy_line

if TYPE_CHECKING:
    from gallery_lib.measure.comparison.result import Comparison
    from gallery_lib.train.results import Results

_KEY_FILE = "notebook.json"
_STEPS = 6
"""Training steps of a run, unless others are asked for: enough to see that it trains."""


def compare(settings: Settings, processes: int) -> Comparison:
    """Compare the baseline with the accelerated backend on `processes` processes, in turns.

    What was measured before with the same code and parameters is shown again.
    """
    train = dataclasses.replace(settings.train, save_weights=settings.task.predictions is not None)
    launch = LaunchConfig(nproc_per_node=processes)
    return _compare_or_find(train, launch, settings.compare, again=settings.measure_again)


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
        return _compare_or_find(train, launch, fewer, again=settings.measure_again)
    except memory_estimate.DoesNotFit as error:
        return NotMeasured(str(error))


def show_comparison(comparison: Comparison | NotMeasured) -> None:
    """Show the verdict, with the tables folded."""
    if isinstance(comparison, NotMeasured):
        comparison.show()
        return
    display_markdown(tables.comparison_markdown(comparison))


def show_throughput(comparison: Comparison) -> None:
    """Show the throughput since launch."""
    from gallery_lib.report import plots

    display_chart(plots.throughput(comparison))


def show_losses(comparison: Comparison) -> None:
    """Show the loss curves of both variants."""
    from gallery_lib.report import plots

    display_chart(plots.losses(comparison))


def show_step_times(comparison: Comparison) -> None:
    """Show the distributions of step times."""
    from gallery_lib.report import plots

    display_chart(plots.step_times(comparison))


def show_break_even(comparison: Comparison) -> None:
    """Show when the longer start-up has paid off, or why it has not."""
    from gallery_lib.report import plots, verdict

    if comparison.break_even_steps is None:
        display_markdown(verdict.break_even_line(comparison))
        return
    display_chart(plots.break_even(comparison))


def show_scaling(one: Comparison, several: Comparison | NotMeasured) -> None:
    """Show one process beside several: total rates, and how well the rates add up."""
    if isinstance(several, NotMeasured):
        several.show()
        return
    display_markdown(tables.scaling_markdown(one, several))


def show_techniques(comparison: Comparison) -> None:
    """Show what the backend did in this run."""
    display_markdown(markdown_table(tables.techniques_rows(comparison.candidate.techniques)))


def _compare_or_find(
    train: TrainConfig, launch: LaunchConfig, turns: CompareConfig, *, again: bool
) -> Comparison:
    """Return the comparison of baseline and backend: the last one of the same kind, or a new one.

    Beside a comparison stands a digest of what it depends on: code, parameters, versions and
    machine. With `again` it is measured anew in any case.
    """
    from gallery_lib.measure.comparison.compare import compare_backend

    key = _key(train, launch, turns)
    if not again and (found := _newest(key)) is not None:
        moment = time.localtime((Path(found.folder) / _KEY_FILE).stat().st_mtime)
        display_markdown(
            f"Measured on {time.strftime('%Y-%m-%d at %H:%M', moment)} on this machine, with this "
            "code and these parameters, and shown again. The parameter `measure_again=True` "
            "measures anew."
        )
        return found
    comparison = compare_backend(train, launch, turns)
    write_json(Path(comparison.folder) / _KEY_FILE, {"key": key})
    return comparison


def _key(train: TrainConfig, launch: LaunchConfig, turns: CompareConfig) -> str:
    from gallery_lib.measure.bench.bench import versions
    from gallery_lib.measure.comparison.untimed import measured_key

    data = Path(train.data_dir).stat().st_mtime if train.data_dir else None
    asked = [options.to_mapping(one) for one in (train, launch, turns)]
    return measured_key(train, *asked, versions(), data)


def _newest(key: str) -> Comparison | None:
    from gallery_lib.measure.comparison.result import read_comparison

    files = paths.runs_dir().glob(f"*/{_KEY_FILE}")
    for file in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            if read_json(file, dict[str, str], again="").get("key") == key:
                return read_comparison(file.parent)
        except (InputError, OSError):  # of another version, or half deleted: measured anew
            continue
    return None


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
    busy = dict.fromkeys(filter(None, map(busy_line, runs)))
    display_markdown("\n\n".join([markdown_table(rows), *busy]))

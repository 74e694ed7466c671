"""Runs and comparisons of a task's notebook, in processes of their own, and their tables.

A waterfall takes minutes, so it is kept, by code, options, versions and machine.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.console.text import number
from gallery_lib.errors import RunFailed
from gallery_lib.notebooks.cells.display import (
    NotMeasured,
    display_chart,
    display_markdown,
    display_table,
)
from gallery_lib.notebooks.cells.task_settings import Settings
from gallery_lib.report import tables
from gallery_lib.system import hardware, paths
from gallery_lib.system.machine_load import Watch

if TYPE_CHECKING:
    from gallery_lib.measure.bench.result import Bench
    from gallery_lib.measure.comparison.result import Comparison

_STEPS = 6
"""Training steps of a run: enough to see that it trains."""
ALL_OTHERS = "all others"
_WATERFALL_ROUNDS = 4


def compare(settings: Settings, processes: int) -> Comparison:
    """Compare the baseline with the accelerated backend on `processes` processes, in turns."""
    from gallery_lib.measure.comparison.compare import compare_backend

    return compare_backend(settings.train, LaunchConfig(nproc_per_node=processes), settings.compare)


def per_process_config(settings: Settings, processes: int) -> TrainConfig:
    """Return the run's options with the batch size of one of several processes.

    Each GPU takes a whole batch. Processes that share the cores of one CPU share the batch as well.
    """
    from gallery_lib import tasks

    if processes == 1 or hardware.device_type() != "cpu":
        return settings.train
    together = tasks.with_sizes(settings.train).batch_size or 1
    item = settings.task.samples_per_item
    batch_size = max(1, together // item // processes) * item
    return dataclasses.replace(settings.train, batch_size=batch_size)


def compare_on_several(settings: Settings) -> Comparison | NotMeasured:
    """Compare on all devices, without evaluation.

    Returns NotMeasured where there is one device, or too little memory for two variants on several.
    """
    from gallery_lib.measure.comparison.compare import compare_backend
    from gallery_lib.tasks import memory_estimate

    if settings.processes == 1:
        return NotMeasured("this machine has one device, so there is no run on several.")
    train = dataclasses.replace(per_process_config(settings, settings.processes), evaluate=False)
    launch = LaunchConfig(nproc_per_node=settings.processes)
    try:
        return compare_backend(train, launch, settings.compare)
    except memory_estimate.DoesNotFit as error:
        return NotMeasured(str(error))


def show_comparison(comparison: Comparison | NotMeasured) -> None:
    """Show the verdict, with the tables folded."""
    if isinstance(comparison, NotMeasured):
        comparison.show()
    else:
        display_markdown(tables.comparison_markdown(comparison))


def show_throughput(comparison: Comparison) -> None:
    """Show the throughput since launch."""
    from gallery_lib.report import plots

    display_chart(plots.throughput(comparison))


def show_losses(comparison: Comparison) -> None:
    """Show the loss curves of both variants."""
    from gallery_lib.report import plots

    display_chart(plots.losses(comparison))


def show_scaling(one: Comparison, several: Comparison | NotMeasured) -> None:
    """Show one process beside several: total rates, and how well the rates add up."""
    if isinstance(several, NotMeasured):
        several.show()
    else:
        display_markdown(tables.scaling_markdown(one, several))


def show_techniques(comparison: Comparison) -> None:
    """Show what the backend did in this run."""
    display_table([["technique", "in this run"], *comparison.candidate.techniques.items()])


def launch(settings: Settings, *, processes: int, compiler_opt: bool) -> None:
    """Run `launch_single_task.py` for a few steps with the notebook's options, and show the losses.

    The exact command is shown. Processes that share the cores of one CPU share the batch.

    Args:
        settings: the notebook's settings.
        processes: how many train together, with DistributedDataParallel.
        compiler_opt: the accelerated backend, as `--compiler-opt` asks for it.

    Raises:
        InputError: for options that cannot work here.
        RunFailed: when a process fails.
    """
    from gallery_lib.launcher.job import launch as launch_job

    train = dataclasses.replace(
        per_process_config(settings, processes),
        compiler_opt=compiler_opt,
        evaluate=False,
        max_steps=_STEPS,
        warmup_steps=1,
    )
    run = launch_job(train, LaunchConfig(nproc_per_node=processes), show_log=False)
    assert run is not None
    first, last = (number(run.loss[name] or math.nan) for name in ("first", "last"))
    display_markdown(
        f"{run.world_size} process(es), {'with' if compiler_opt else 'without'} `--compiler-opt`: "
        f"loss {first} → {last} in {run.steps} steps, start-up "
        f"{number(run.startup_seconds['total'])} s"
    )


# --------------------------------------------------------------------------------------------------
# The techniques that matter for a model, one after another


def measure_techniques(settings: Settings, *techniques: str) -> Bench | None:
    """Return the task's steps with one technique after another, measured in turns, or kept.

    Returns None where the notebook's parameter `waterfall` says that nothing be measured. What was
    measured while other processes were at work is shown with a remark, and not kept.

    Args:
        settings: the notebook's settings.
        *techniques: the techniques, in the order in which they are added. All others follow as one.

    Raises:
        RunFailed: when nothing could be measured.
    """
    from gallery_lib import memory
    from gallery_lib.measure.bench import bench
    from gallery_lib.measure.bench.plan import waterfall_of
    from gallery_lib.measure.bench.result import Bench, read_bench, write_bench
    from gallery_lib.measure.variants import TECHNIQUES

    if not settings.waterfall:
        return None
    added = {name: [name] for name in techniques}
    if others := [name for name in TECHNIQUES if name not in techniques]:
        added[ALL_OTHERS] = others
    rounds = min(settings.compare.rounds, _WATERFALL_ROUNDS)
    compare = dataclasses.replace(settings.compare, rounds=rounds)
    plan = waterfall_of(dataclasses.replace(settings.train, evaluate=False), compare, added)
    digest = bench.digest_of(plan)
    kept, name = paths.cache_dir() / "waterfalls" / f"{digest}.json", settings.name
    if kept.is_file():
        result = read_bench(kept)
        display_markdown(
            f"Measured on {next(iter(result.tasks.values())).date[:10]} on this machine, with this "
            f"code and these options. To measure anew, delete `{kept}`."
        )
        return result
    memory.trim()  # what follows trains in other processes
    watch = Watch()
    folder = paths.new_run_dir(f"waterfall-{name}")
    outcome = bench.measure_task(plan, digest, folder, at_pause=watch.at_pause)
    if outcome.reason is not None:
        raise RunFailed(f"the techniques could not be measured: {outcome.reason}")
    result = Bench(
        kind="waterfall",
        command="",
        options=dict(outcome.sizes),
        environment=hardware.machine_facts(),
        versions=bench.versions(),
        tasks={name: outcome},
    )
    if busy := watch.seen().sentence():
        display_markdown(f"{busy} These figures are not kept.")
    elif all(row.reason is None or key in plan.absent for key, row in outcome.rows.items()):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_bench(kept, result)
    return result


def show_techniques_added(bench: Bench | None) -> None:
    """Show what each technique adds to what `measure_techniques` returned, as figure and table."""
    from gallery_lib.report.bench import chart

    if bench is None:
        NotMeasured("the parameter `waterfall` is False.").show()
    else:
        display_chart(chart(bench), fold=False)

"""The techniques that matter for a model, one after another, measured in turns and kept.

A waterfall takes minutes. What was measured on this machine with this code, these options and
these library versions is kept in the cache folder and shown again, with its date. What was measured
while other processes were at work is shown with a remark, and not kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.notebooks.cells.display import display_chart, display_markdown
from gallery_lib.notebooks.cells.task_settings import Settings
from gallery_lib.system import hardware, paths

if TYPE_CHECKING:
    from gallery_lib.measure.bench.result import Bench

ALL_OTHERS = "all others"
_ROUNDS = 4


def _added(techniques: Sequence[str]) -> dict[str, list[str]]:
    """Return what each row of the waterfall adds; the last adds what no other row has.

    Raises:
        InputError: for an unknown technique.
    """
    from gallery_lib.measure.variants.recipes import TECHNIQUES

    for name in techniques:
        if name not in TECHNIQUES:
            raise InputError(
                f"`{name}` is no technique of the backend.{did_you_mean(name, TECHNIQUES)} Known: "
                f"{', '.join(TECHNIQUES)}.",
                parameter="techniques",
            )
    others = [name for name in TECHNIQUES if name not in techniques]
    return {**{name: [name] for name in techniques}, **({ALL_OTHERS: others} if others else {})}


def measure_techniques(settings: Settings, *techniques: str) -> Bench | None:
    """Return the task's steps with one technique after another, measured in turns, or kept.

    Returns None where the notebook's parameter `waterfall` says that nothing be measured.

    Args:
        settings: the notebook's settings.
        *techniques: the techniques, in the order in which they are added. All others follow as one.

    Raises:
        InputError: for an unknown technique.
        RunFailed: when nothing could be measured.
    """
    from gallery_lib.errors import RunFailed
    from gallery_lib.measure.bench import bench, task
    from gallery_lib.measure.bench.plan import waterfall_of
    from gallery_lib.measure.bench.result import Bench, read_bench, write_bench
    from gallery_lib.memory import allocator
    from gallery_lib.system import machine_load

    added = _added(techniques)
    if not settings.waterfall:
        return None
    compare = dataclasses.replace(settings.compare, rounds=min(settings.compare.rounds, _ROUNDS))
    train = dataclasses.replace(settings.train, evaluate=False)
    plan = waterfall_of(train, compare, added)
    digest = bench.digest_of(plan, None)
    kept = paths.cache_dir() / "waterfalls" / f"{digest}.json"
    if kept.is_file() and not settings.measure_again:
        result = read_bench(kept)
        outcome = next(iter(result.tasks.values()))
        display_markdown(
            f"Measured on {outcome.date[:10]} on this machine, with this code and these options. "
            "The parameter `measure_again=True` measures anew."
        )
        return result
    name = settings.name
    allocator.trim()  # what follows trains in other processes
    before = machine_load.look()
    outcome = task.measure(plan, None, digest, paths.new_run_dir(f"waterfall-{name}"))
    if outcome.reason is not None:
        raise RunFailed(f"the techniques could not be measured: {outcome.reason}")
    result = Bench(
        kind="waterfall",
        command=f"gallery bench --waterfall {name}",
        options=dict(outcome.sizes),
        environment=hardware.machine_facts(),
        versions=bench.versions(),
        tasks={name: outcome},
    )
    others = machine_load.others_between([before, machine_load.look()], with_hidden=False)
    if others is not None and others.cores > machine_load.OTHER_CORES:
        display_markdown(
            f"The machine was busy: other processes took {others.cores:.1f} of {hardware.cores()} "
            "cores. Run this cell again when it is quiet; these figures are not kept."
        )
    elif all(row.reason is None or name in plan.absent for name, row in outcome.rows.items()):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_bench(kept, result)
    return result


def show_techniques_added(bench: Bench | None) -> None:
    """Show what each technique adds to what `measure_techniques` returned, as figure and table."""
    from gallery_lib.report import bench_chart

    if bench is None:
        display_markdown("**Not measured**: the parameter `waterfall` is False.")
        return
    display_chart(bench_chart.chart(bench), fold=False)

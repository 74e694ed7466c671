"""How many times as fast ours is as each other variant and as the best of them, by task.

The geometric mean over tasks stands beside it.
"""

from __future__ import annotations

from gallery_lib import stats
from gallery_lib.console.table import Rows
from gallery_lib.measure.bench.result import OURS, Bench, Outcome
from gallery_lib.measure.variants.forms import BEST, PEERS, best_of_others
from gallery_lib.report.bench.task_table import ratio_text, reason_text
from gallery_lib.stats import Ratio


def compared_with(bench: Bench) -> list[str]:
    """Return the names of all variants except ours."""
    names = dict.fromkeys(name for outcome in bench.tasks.values() for name in outcome.rows)
    return [name for name in names if name != OURS]


def _candidates(bench: Bench) -> tuple[str, ...]:
    """Return the variants from which the best of the others is taken.

    These are the best forms or, in a bench that has none, the peers as they come.
    """
    names = compared_with(bench)
    return tuple(name for name in BEST if name in names) or tuple(
        name for name in PEERS if name in names
    )


def best_label(bench: Bench) -> str:
    """Return what the best of the others is called in this bench."""
    return (
        "best of the others at its best"
        if set(BEST) & set(_candidates(bench))
        else "best of the peers as it comes"
    )


def over_best(bench: Bench, task: str) -> tuple[str, Ratio] | None:
    """Return the best of the others in `task`, and how many times as fast ours is.

    Returns None where ours has a ratio over none of the others.
    """
    outcome = bench.tasks[task]
    name = best_of_others(outcome, _candidates(bench))
    ratio = outcome.ratio(name, OURS) if name else None
    return (name, ratio) if name and ratio else None


def mean_over_tasks(bench: Bench, other: str) -> tuple[Ratio | None, list[str]]:
    """Return the geometric mean of how many times as fast ours is as `other`.

    The second value names the tasks that are left out of the mean.
    """
    return _mean({name: outcome.ratio(other, OURS) for name, outcome in bench.tasks.items()})


def mean_over_best(bench: Bench) -> tuple[Ratio | None, list[str]]:
    """Return the geometric mean of how many times as fast ours is as the best of the others.

    Each task has its own best of the others. The second value names the tasks that are left out of
    the mean.
    """
    return _mean(
        {name: pair[1] if (pair := over_best(bench, name)) else None for name in bench.tasks}
    )


def _mean(by_task: dict[str, Ratio | None]) -> tuple[Ratio | None, list[str]]:
    ratios = [ratio for ratio in by_task.values() if ratio is not None]
    left_out = [name for name, ratio in by_task.items() if ratio is None]
    return (stats.geometric_mean(ratios) if ratios else None), left_out


def summary_rows(bench: Bench) -> Rows:
    """Return the table of ours over every other variant and over the best of them.

    There is a line for each task, and one for the geometric mean.
    """
    others, candidates = compared_with(bench), _candidates(bench)
    header = ["task", *(f"ours over {name}" for name in others)]
    means = [mean_over_tasks(bench, other) for other in others]
    if candidates:
        header.append(f"ours over the {best_label(bench)}")
        means.append(mean_over_best(bench))
    return [
        header,
        *(_task_cells(bench, name, others, candidates) for name in bench.tasks),
        ["geometric mean", *(_mean_cell(*mean, count=len(bench.tasks)) for mean in means)],
    ]


def _task_cells(
    bench: Bench, task: str, others: list[str], candidates: tuple[str, ...]
) -> list[str]:
    outcome = bench.tasks[task]
    cells = [task]
    for other in others:
        ratio = outcome.ratio(other, OURS)
        cells.append(ratio_text(ratio) if ratio else _reason_for_no_ratio(outcome, other))
    if candidates:
        best = over_best(bench, task)
        # The reason is a fault of ours, or else one of each candidate.
        reasons = dict.fromkeys(_reason_for_no_ratio(outcome, other) for other in candidates)
        cells.append(f"{best[1]}, {best[0]}" if best else "; ".join(reasons))
    return cells


def _mean_cell(mean: Ratio | None, left_out: list[str], *, count: int) -> str:
    return f"{ratio_text(mean) or 'none'}, {count - len(left_out)} of {count} tasks"


def _reason_for_no_ratio(outcome: Outcome, other: str) -> str:
    """Return why there is no ratio of ours to `other`."""
    for name in (OURS, other):
        row = outcome.rows.get(name)
        if row is None:
            return "not asked for"
        if row.reason is not None:
            return reason_text(row).partition(":")[0] + f" ({name})"
        if not row.comparable:
            return f"no parity ({name})"
    return "not measured"

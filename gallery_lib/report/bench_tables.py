"""Tables of a bench or a waterfall: the variants of a task, and ours over each other variant.

Speeds stand beside the machine's limits, measured in the same run. A variant shows its reason
instead of a speed if it did not run, or does not compute the same training.
"""

from __future__ import annotations

from gallery_lib import stats
from gallery_lib.console.table import Rows, number, seconds
from gallery_lib.measure.bench.result import (
    BEST,
    OURS,
    PEERS,
    Bench,
    Outcome,
    Row,
    best_of_others,
)
from gallery_lib.stats import Ratio


def task_rows(outcome: Outcome, kind: str) -> Rows:
    """Return the table of one task of a bench or a waterfall.

    A bench has a line for each variant, a waterfall one for each added technique.
    """
    baseline, waterfall = outcome.baseline, kind == "waterfall"
    rows = [
        [
            "+ technique" if waterfall else "variant",
            *("step", "samples/s", "whole run", "start-up", "peak memory"),
            f"over {baseline}",
            "over the row above" if waterfall else "ours over it",
            *("GFLOP/s (of limit)", "GB/s (of limit)", "parity"),
        ]
    ]
    products = max((rate for name, rate in outcome.limits.items() if name != "copy"), default=0.0)
    before = baseline
    for name, row in outcome.rows.items():
        label = f"+ {name}" if waterfall and name != baseline else name
        if row.reason is not None:
            rows.append([label, *[""] * 9, _reason(row)])
            continue
        above = (before, name) if waterfall and before != baseline else (name, OURS)
        rates = row.samples_per_second
        memory = row.peak_memory_bytes.get("device") or row.peak_memory_bytes.get("host")
        sustained = f" (sustained {number(rates['sustained'])})" if row.hidden_wait else ""
        rows.append(
            [
                label,
                seconds(row.step_seconds["p50"]),
                f"{number(rates['global'])}{sustained}",
                number(rates["whole_run"]),
                f"{row.startup_seconds['total']:.1f} s",
                f"{memory / 2**30:.2f} GiB" if memory else "",
                _or_empty(outcome.ratio(baseline, name)),
                _or_empty(outcome.ratio(*above)),
                _rate(row.flops_per_second, products),
                _rate(row.bytes_per_second, outcome.limits["copy"]),
                _parity(row),
            ]
        )
        before = name
    return rows


def _or_empty(ratio: Ratio | None) -> str:
    return "" if ratio is None else str(ratio)


def _reason(row: Row) -> str:
    """Return why a variant has no figures."""
    known = str(row.reason).startswith(("not installed", "does not apply"))
    return f"{'' if known else 'did not run: '}{row.reason}"


def _rate(value: float | None, limit: float) -> str:
    """Return a rate in 10⁹ a second and as a part of the limit; '' without a value."""
    of_limit = f" ({value / limit:.0%})" if value is not None and limit else ""
    return "" if value is None else f"{value / 1e9:.3g}{of_limit}"


def _parity(row: Row) -> str:
    if row.parity is None:
        return "baseline"
    if row.parity["passed"]:
        return "passed"
    if row.parity.get("batch_to_take"):
        return f"too small to judge: take a batch size of {row.parity['batch_to_take']:,} or more"
    failed = [check for check in row.parity["checks"] if not check["passed"]]
    if row.parity.get("verdict") == "same at first, then not":
        return f"FAILED: same until {failed[0]['where']}, then not"
    return f"FAILED: {', '.join(check['name'] for check in failed)}"


def compared_with(bench: Bench) -> list[str]:
    """Return the names of all variants except ours."""
    names = dict.fromkeys(name for outcome in bench.tasks.values() for name in outcome.rows)
    return [name for name in names if name != OURS]


def _candidates(bench: Bench) -> tuple[str, ...]:
    """Return the best forms or, in a bench that has none, the peers as they come."""
    names = compared_with(bench)
    return tuple(n for n in BEST if n in names) or tuple(n for n in PEERS if n in names)


def best_label(bench: Bench) -> str:
    """Return what the best of the others is called in this bench."""
    if set(BEST) & set(_candidates(bench)):
        return "best of the others at its best"
    return "best of the peers as it comes"


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
    rows = [header]
    for name, outcome in bench.tasks.items():
        cells = [str(outcome.ratio(n, OURS) or _no_ratio(outcome, n)) for n in others]
        if best := over_best(bench, name):
            cells.append(f"{best[1]}, {best[0]}")
        elif candidates:
            # The reason is a fault of ours, or else one of each candidate.
            cells.append("; ".join(dict.fromkeys(_no_ratio(outcome, n) for n in candidates)))
        rows.append([name, *cells])
    count = len(bench.tasks)
    cells = [f"{mean or 'none'}, {count - len(out)} of {count} tasks" for mean, out in means]
    return [*rows, ["geometric mean", *cells]]


def _no_ratio(outcome: Outcome, other: str) -> str:
    """Return why there is no ratio of ours to `other`."""
    for name in (OURS, other):
        row = outcome.rows.get(name)
        if row is None:
            return "not asked for"
        if row.reason is not None:
            return _reason(row).partition(":")[0] + f" ({name})"
        if not row.comparable:
            return f"no parity ({name})"
    return "not measured"

"""Tables and a picture of a bench, as text and as Markdown, with alternative text; needs no torch.

Speeds stand beside the machine's limits, measured in the same run. A variant shows its reason
instead of a speed if it did not run, or does not compute the same training.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from gallery_lib import stats
from gallery_lib.console.table import Rows, markdown_table, seconds, text_table
from gallery_lib.measure.bench.result import OURS, Bench, Outcome, Row
from gallery_lib.measure.variants.forms import BEST, PEERS, best_of_others
from gallery_lib.stats import Ratio
from gallery_lib.system import hardware

_OURS_COLOUR, _TICK_COLOUR = "#56B4E9", "#D55E00"


def _times(ratio: Ratio | None) -> str:
    return "" if ratio is None else str(ratio)


def _gibibytes(row: Row) -> str:
    value = row.peak_memory_bytes.get("device") or row.peak_memory_bytes.get("host")
    return "" if value is None else f"{value / 2**30:.2f} GiB"


def _rate(value: float | None, limit: float) -> str:
    """Return a rate in 10⁹ a second and as a part of the limit; '' without a value."""
    return "" if value is None else f"{value / 1e9:.3g} ({value / limit:.0%})"


def _parity(row: Row) -> str:
    if row.parity is None:
        return "baseline"
    return (
        "passed"
        if row.parity["passed"]
        else "FAILED: " + ", ".join(c["name"] for c in row.parity["checks"] if not c["passed"])
    )


def _reason(row: Row) -> str:
    return (
        f"did not run: {row.reason}"
        if not str(row.reason).startswith(("not installed", "does not apply"))
        else str(row.reason)
    )


def task_rows(outcome: Outcome, kind: str) -> Rows:
    """Return the table of one task, with a line for each variant or each added technique."""
    second = "over the row above" if kind == "waterfall" else "ours over it"
    rows = [
        [
            "+ technique" if kind == "waterfall" else "variant",
            "step",
            "samples/s",
            "whole run",
            "start-up",
            "peak memory",
        ]
    ]
    baseline = outcome.baseline
    rows[0] += [f"over {baseline}", second, "GFLOP/s (of limit)", "GB/s (of limit)", "parity"]
    products = max((rate for name, rate in outcome.limits.items() if name != "copy"), default=0.0)
    before = baseline
    for name, row in outcome.rows.items():
        shown = f"+ {name}" if kind == "waterfall" and name != baseline else name
        if row.reason is not None:
            rows.append([shown, *[""] * 9, _reason(row)])
            continue
        other = (
            outcome.ratio(before, name)
            if kind == "waterfall" and before != baseline
            else outcome.ratio(name, OURS)
        )
        rows.append(
            [
                shown,
                seconds(row.step_seconds["p50"]),
                f"{row.samples_per_second['global']:.1f}",
                f"{row.samples_per_second['whole_run']:.1f}",
                f"{row.startup_seconds['total']:.1f} s",
                _gibibytes(row),
                _times(outcome.ratio(baseline, name)),
                _times(other),
                _rate(row.flops_per_second, products),
                _rate(row.bytes_per_second, outcome.limits["copy"]),
                _parity(row),
            ]
        )
        before = name
    return rows


def limits_line(outcome: Outcome) -> str:
    """Return a line with the limits that the machine reached in the same run."""
    products = ", ".join(
        f"{rate / 1e9:.0f} GFLOP/s in {name}"
        for name, rate in outcome.limits.items()
        if name != "copy"
    )
    return (
        f"Limits of the machine, measured just before: matrix products {products}; copying "
        f"{outcome.limits['copy'] / 1e9:.1f} GB/s."
    )


def best_forms_line(outcome: Outcome) -> str | None:
    """Return a line with the settings of the best forms in this task; None where none ran.

    The settings are those of the first best form that ran.
    """
    done = next(
        (row.techniques for name in BEST if (row := outcome.rows.get(name)) and row.reason is None),
        None,
    )
    return (
        f"At its best: {'; '.join(f'{name}: {what}' for name, what in done.items())}."
        if done
        else None
    )


def compared_with(bench: Bench) -> list[str]:
    """Return the names of all variants except ours."""
    names = dict.fromkeys(name for outcome in bench.tasks.values() for name in outcome.rows)
    return [name for name in names if name != OURS]


def _others(bench: Bench) -> tuple[str, ...]:
    """Return the variants from which the best of the others is taken.

    These are the best forms or, in a bench that has none, the peers as they come.
    """
    names = compared_with(bench)
    return tuple(name for name in BEST if name in names) or tuple(
        name for name in PEERS if name in names
    )


def _best_label(bench: Bench) -> str:
    return (
        "best of the others at its best"
        if set(BEST) & set(_others(bench))
        else "best of the peers as it comes"
    )


def over_best(bench: Bench, task: str) -> tuple[str, Ratio] | None:
    """Return the best of the others in `task`, and how many times as fast ours is.

    Returns None where ours has a ratio over none of the others.
    """
    outcome = bench.tasks[task]
    name = best_of_others(outcome, _others(bench))
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


def _mean(found: dict[str, Ratio | None]) -> tuple[Ratio | None, list[str]]:
    ratios = [ratio for ratio in found.values() if ratio is not None]
    return (stats.geometric_mean(ratios) if ratios else None), [
        name for name, ratio in found.items() if ratio is None
    ]


def _instead(outcome: Outcome, other: str) -> str:
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


def summary_rows(bench: Bench) -> Rows:
    """Return the table of ours over every other variant and over the best of them.

    There is a line for each task, and one for the geometric mean.
    """
    others, candidates = compared_with(bench), _others(bench)
    rows = [
        [
            "task",
            *(f"ours over {name}" for name in others),
            *([f"ours over the {_best_label(bench)}"] if candidates else []),
        ]
    ]
    for name, outcome in bench.tasks.items():
        ratios = [outcome.ratio(other, OURS) for other in others]
        cells = [
            _times(r) if r else _instead(outcome, other)
            for r, other in zip(ratios, others, strict=True)
        ]
        if candidates:
            best = over_best(bench, name)
            cells.append(f"{best[1]}, {best[0]}" if best else _why_no_best(outcome, candidates))
        rows.append([name, *cells])
    means = [mean_over_tasks(bench, other) for other in others] + (
        [mean_over_best(bench)] if candidates else []
    )
    count = len(bench.tasks)
    return [
        *rows,
        [
            "geometric mean",
            *(
                f"{_times(mean) or 'none'}, {count - len(left_out)} of {count} tasks"
                for mean, left_out in means
            ),
        ],
    ]


def _why_no_best(outcome: Outcome, others: tuple[str, ...]) -> str:
    """Return why ours has no ratio over the best of `others`.

    The reason is a fault of ours, or else one of each of the others.
    """
    reasons = dict.fromkeys(_instead(outcome, other) for other in others)
    return "; ".join(reasons)


def notes(bench: Bench) -> list[str]:
    """Return notes on how to read the figures."""
    versions = ", ".join(
        f"{name} {number}" for name, number in bench.versions.items() if number != "not installed"
    )
    found = [
        f"{hardware.describe(bench.environment)}. Versions: {versions}. Command: `{bench.command}`."
    ]
    found.append(
        "Variants of a task took turns. Intervals are of steady-state steps (bootstrap over "
        "turns); `whole run` counts start-up as well. GB/s: bytes that eager operators move, over "
        "this variant's time; what fuses them moves less and may exceed the limit."
    )
    if bench.kind == "bench":
        found += [_forms(bench), _of_parity(bench)]
    return found


def _forms(bench: Bench) -> str:
    """Return a note on the two forms of a peer: as it comes, and at its best."""
    if not any(name in BEST for name in compared_with(bench)):
        fused = bench.options.get("fused")
        given = (
            "a fused one in every variant" if fused else "torch's as it comes; ours: a fused one"
        )
        return f"Optimizer: {given}."
    return (
        "As it comes: eager and the peers without `-best`, as their documentation shows them. At "
        "its best: with `-best`, as somebody who tunes by hand uses it: torch's fused optimizer "
        "where it has one, channels_last where convolutions gain from it, on a CPU glibc told to "
        "keep large blocks (GLIBC_TUNABLES), and the fastest of the compiler's modes that were "
        "tried. The best of the others is, in each task, the one that ours has the smallest lead "
        "over."
    )


def _of_parity(bench: Bench) -> str:
    return (
        f"Parity is with {bench.baseline}, held against float64. Two variants have a ratio where "
        "both pass, or, where one of them does not, if they compute the same training as one "
        "another."
    )


def _parts(bench: Bench, table: Any, heading: str) -> list[str]:
    parts = []
    for name, outcome in bench.tasks.items():
        sizes = ", ".join(
            f"{key.replace('_', ' ')} {value}" for key, value in outcome.sizes.items()
        )
        parts.append(f"{heading}{name}: {sizes}" if sizes else f"{heading}{name}")
        if outcome.reason is not None:
            parts.append(f"Not measured: {outcome.reason}")
            continue
        parts += [table(task_rows(outcome, bench.kind)), limits_line(outcome)]
        parts += [line for line in [best_forms_line(outcome)] if line]
    if bench.kind == "bench" and any(OURS in outcome.rows for outcome in bench.tasks.values()):
        parts += [f"{heading}ours beside the others", table(summary_rows(bench))]
    return [*parts, *notes(bench)]


def text(bench: Bench) -> str:
    """Return the bench as text for a terminal."""
    return "\n\n".join(_parts(bench, text_table, ""))


def markdown_tables(bench: Bench, heading: str = "## ") -> str:
    """Return the tables as Markdown, each under a title that begins with `heading`."""
    return "\n\n".join(_parts(bench, markdown_table, heading))


def markdown(bench: Bench, picture: str) -> str:
    """Return the content of a Markdown file that lies beside the file `picture` and shows it."""
    return (
        "\n\n".join(
            [
                f"# gallery {bench.kind}",
                f"![{figure_text(bench)}]({picture})",
                markdown_tables(bench),
            ]
        )
        + "\n"
    )


def _steps_of_waterfall(bench: Bench) -> dict[str, Ratio | None]:
    """Return the techniques in the order of addition, each with a ratio over the baseline.

    The ratio is that of all techniques added so far.
    """
    outcome = next(iter(bench.tasks.values()))
    return {
        f"+ {name}": outcome.ratio(outcome.baseline, name)
        for name in outcome.rows
        if name != outcome.baseline
    }


def _ours(bench: Bench) -> dict[str, Ratio | None]:
    """Return the ratio of ours over the baseline, by task."""
    return {name: outcome.ratio(bench.baseline, OURS) for name, outcome in bench.tasks.items()}


def _ticks(bench: Bench) -> dict[str, tuple[str, Ratio]]:
    """Return the best of the others, with its ratio over the baseline, by task."""
    found = {}
    for task, outcome in bench.tasks.items():
        best = over_best(bench, task)
        if best and (ratio := outcome.ratio(bench.baseline, best[0])):
            found[task] = best[0], ratio
    return found


def figure(bench: Bench) -> Figure:
    """Return the figure of a bench or a waterfall.

    A bench has a bar per task for ours over the baseline, and a tick for the best of the others. A
    waterfall has a point per technique. Bars and points have intervals; ticks have none. A missing
    ratio is labelled `not measured`.
    """
    values = _steps_of_waterfall(bench) if bench.kind == "waterfall" else _ours(bench)
    plot = Figure(figsize=(8.0, 1.2 + 0.32 * len(values)), layout="constrained")
    axes = plot.subplots()
    shown = [(y, ratio) for y, ratio in enumerate(values.values()) if ratio is not None]
    places, ratios = [y for y, _ in shown], [r.ratio for _, r in shown]
    spans = [[r.ratio - r.low for _, r in shown], [r.high - r.ratio for _, r in shown]]
    if bench.kind == "waterfall":
        axes.errorbar(
            ratios, places, xerr=spans, linestyle="", marker="o", color=_OURS_COLOUR, capsize=2
        )
    else:
        axes.barh(places, ratios, height=0.6, color=_OURS_COLOUR, label=OURS)
        axes.errorbar(
            ratios, places, xerr=spans, linestyle="", color="black", linewidth=0.8, capsize=2
        )
        _draw_ticks(axes, bench)
    for y, ratio in enumerate(values.values()):
        if ratio is None:
            axes.text(1.02, y, "not measured", va="center", fontsize="small", color="dimgray")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(values)), list(values))
    axes.set_ylim(len(values) - 0.5, -0.5)  # the first at the top
    axes.set(
        xlabel=f"times as fast as {bench.baseline}", title="Steady-state speed, with intervals"
    )
    axes.grid(axis="x", alpha=0.3)
    return plot


def _draw_ticks(axes: Any, bench: Bench) -> None:
    names, ticks = list(bench.tasks), _ticks(bench)
    if ticks:
        places = [names.index(task) for task in ticks]
        values = [ratio.ratio for _, ratio in ticks.values()]
        axes.plot(
            values,
            places,
            linestyle="",
            marker="|",
            markersize=13,
            markeredgewidth=3,
            color=_TICK_COLOUR,
            label=_best_label(bench),
        )
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside lower center", fontsize="small", frameon=False, ncols=2)


def figure_text(bench: Bench) -> str:
    """Return the alternative text of `figure`."""
    if bench.kind == "waterfall":
        points = ", ".join(
            f"{name} {_figure_of(ratio)}" for name, ratio in _steps_of_waterfall(bench).items()
        )
        return f"Points with intervals, times as fast as {bench.baseline}. {points}."
    bars = ", ".join(f"{name} {_figure_of(ratio)}" for name, ratio in _ours(bench).items())
    ticks = ", ".join(
        f"{task} {ratio.ratio:.2f} ({name})" for task, (name, ratio) in _ticks(bench).items()
    )
    said = f" Ticks, {_best_label(bench)}: {ticks}." if ticks else ""
    return (
        f"Bars with intervals, times as fast as {bench.baseline}, and a line at 1. {OURS}: "
        f"{bars}.{said}"
    )


def _figure_of(ratio: Ratio | None) -> str:
    return f"{ratio.ratio:.2f}" if ratio else "not measured"


def complete(bench: Bench) -> bool:
    """Return whether every task was measured, and ours ran with parity.

    In a waterfall, every technique that applies must have run with parity.
    """
    for outcome in bench.tasks.values():
        rows = (
            outcome.rows
            if bench.kind == "waterfall"
            else {OURS: outcome.rows[OURS]}
            if OURS in outcome.rows
            else {}
        )
        applied = [row for row in rows.values() if not str(row.reason).startswith("does not apply")]
        if outcome.reason is not None or not all(row.comparable for row in applied):
            return False
    return True

"""Tables, text and chart of a bench or a waterfall: the variants of a task, ours over each other.

A variant shows its reason instead of a speed if it did not run, or does not compute the same
training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gallery_lib import stats
from gallery_lib.console.text import Rows, markdown_table, number, seconds, text_table
from gallery_lib.measure.bench_result import (
    BEST,
    EAGER,
    OURS,
    Bench,
    Outcome,
    Row,
    best_of_others,
)
from gallery_lib.measure.comparison.result import NOT_ANY_MORE, OTHER_CLOCKS, Parity
from gallery_lib.report import style
from gallery_lib.report.style import Chart, listed
from gallery_lib.stats import Ratio
from gallery_lib.system import hardware
from gallery_lib.system.gpu import clocks_apart

MEANINGS = {
    "layout": "convolutions read all channels of a pixel side by side (`channels_last`)",
    "allocator": "memory of large tensors is kept from step to step, without page faults",
    "compiler": "torch's compiler makes one kernel of several operators",
    "bf16-on-fp32-units": "bfloat16 products run on the fp32 units of a CPU without bfloat16 ones",
    "short-attention": "attention over short sequences becomes batched matrix products",
    "whole-upsampling": "torch's own operators enlarge images, instead of atomic additions",
    "max-pooling": "the gradient of a pooling is one pass over the image, not a scatter",
    "large-batch-norms": "batch norms over large images go over memory in order",
    "vector-masks": "masks of ReLU and dropout are read and written by vector instructions",
    "small-convolutions": "convolutions over few pixels become matrix products",
    "winograd": "3 × 3 convolutions in fp32 take fewer products",
    "mixed-products": "weights are rounded to bfloat16 as they are read, without copies of them",
    "nice-loading": "processes that load data step back behind the training",
    "fused-optimizer": "the optimizer updates all weights in one pass over memory",
    "all others": "the techniques of the backend without a row of their own",
}
"""What each technique does, as half a sentence."""
_BEST_LABEL = "best of the others at its best"
_READ = (
    "Variants of a task took turns. Intervals are of steady-state steps (bootstrap over turns); "
    "`whole run` counts start-up as well. Parity is with the eager variant, held against float64. "
    "Two variants have a ratio where both pass."
)
_READ_FORMS = (
    "With `-best`: as somebody who tunes by hand uses it, with torch's fused optimizer where there "
    "is one, channels_last where convolutions gain from it, and on a CPU glibc told to keep large "
    "blocks. The best of the others is, in each task, the one that ours has the smallest lead over."
)


def task_title(name: str) -> str:
    """Return the title of one of the gallery's tasks, and the name of another."""
    from gallery_lib import tasks

    return tasks.get(name).title if name in tasks.names() else name.rsplit(":", 1)[-1]


def baseline_title(bench: Bench) -> str:
    """Return what the baseline of the bench is: `eager in fp32` or `eager in bf16`."""
    if bench.baseline == EAGER["O0"]:
        return "eager in fp32"
    dtype = bench.options.get("amp_dtype") or "auto"
    if dtype == "auto":
        dtype = "bf16" if bench.environment.get("device") == "cpu" else "mixed precision"
    return f"eager in {dtype}"


# --------------------------------------------------------------------------------------------------
# Tables


def task_rows(outcome: Outcome, kind: str) -> Rows:
    """Return the table of one task: a line for each variant, or for each technique that is added.

    The last columns of a waterfall hold a technique against the row above, those of a bench ours
    against a variant.
    """
    baseline, waterfall = outcome.baseline, kind == "waterfall"
    rows = [
        [
            "+ technique" if waterfall else "variant",
            *("step", "samples/s", "whole run", "start-up", "peak memory"),
            f"over {baseline}",
            "over the row above" if waterfall else "ours over it",
            "parity",
        ]
    ]
    before = baseline
    for name, row in outcome.rows.items():
        label = f"+ {name}" if waterfall and name != baseline else name
        if row.reason is not None:
            rows.append([label, *[""] * 7, _reason(row)])
            continue
        above = (before, name) if waterfall and before != baseline else (name, OURS)
        rates = row.samples_per_second
        on_gpu = row.peak_memory_bytes.get("device")
        memory = on_gpu or row.peak_memory_bytes.get("host")
        two_rates = "sustained" in rates and (row.hidden_wait or on_gpu)
        sustained = f" (sustained {number(rates['sustained'])})" if two_rates else ""
        rows.append(
            [
                label,
                seconds(row.step_seconds["p50"]),
                f"{number(rates['global'])}{sustained}",
                number(rates["whole_run"]),
                f"{row.startup_seconds['total']:.1f} s",
                f"{memory / 2**30:.2f} GiB" if memory else "",
                *(_over(outcome, *pair) for pair in ((baseline, name), above)),
                _parity(row.parity),
            ]
        )
        before = name
    return rows


def _over(outcome: Outcome, slower: str, faster: str) -> str:
    """Return the ratio of two variants, or that their GPU clocks forbid one, or ''."""
    rows = [outcome.rows.get(name, Row("not asked for")) for name in (slower, faster)]
    apart = all(row.comparable for row in rows) and clocks_apart(*(row.gpu for row in rows))
    return str(outcome.ratio(slower, faster) or (OTHER_CLOCKS if apart else ""))


def _reason(row: Row) -> str:
    """Return why a variant has no figures."""
    known = str(row.reason).startswith(("not installed", "does not apply"))
    return f"{'' if known else 'did not run: '}{row.reason}"


def _parity(parity: Parity | None) -> str:
    if parity is None:
        return "baseline"
    if parity.passed:
        return "passed"
    if parity.batch_to_take:
        return f"too small to judge: take a batch size of {parity.batch_to_take:,} or more"
    if parity.verdict == NOT_ANY_MORE:
        return f"FAILED: same until {parity.failed[0].where}, then not"
    return f"FAILED: {', '.join(check.name for check in parity.failed)}"


def compared_with(bench: Bench) -> list[str]:
    """Return the names of all variants except ours."""
    names = dict.fromkeys(name for outcome in bench.tasks.values() for name in outcome.rows)
    return [name for name in names if name != OURS]


def over_best(bench: Bench, task: str) -> tuple[str, Ratio] | None:
    """Return the best of the others in `task`, and how many times as fast ours is.

    Returns None where ours has a ratio over none of the others.
    """
    outcome = bench.tasks[task]
    name = best_of_others(outcome)
    ratio = outcome.ratio(name, OURS) if name else None
    return (name, ratio) if name and ratio else None


def mean_over_tasks(bench: Bench, other: str) -> tuple[Ratio | None, list[str]]:
    """Return the geometric mean of how many times as fast ours is as `other`.

    The second value names the tasks that are left out of the mean.
    """
    return _mean({name: outcome.ratio(other, OURS) for name, outcome in bench.tasks.items()})


def mean_over_best(bench: Bench) -> tuple[Ratio | None, list[str]]:
    """Return the same over the best of the others, of which each task has its own."""
    best = {name: over_best(bench, name) for name in bench.tasks}
    return _mean({name: pair[1] if pair else None for name, pair in best.items()})


def _mean(by_task: dict[str, Ratio | None]) -> tuple[Ratio | None, list[str]]:
    ratios = [ratio for ratio in by_task.values() if ratio is not None]
    left_out = [name for name, ratio in by_task.items() if ratio is None]
    return (stats.geometric_mean(ratios) if ratios else None), left_out


def summary_rows(bench: Bench) -> Rows:
    """Return the table of ours over every other variant and over the best of them.

    There is a line for each task, and one for the geometric mean.
    """
    others = compared_with(bench)
    rows = [["task", *(f"ours over {name}" for name in others), f"ours over the {_BEST_LABEL}"]]
    for name, outcome in bench.tasks.items():
        best = over_best(bench, name)
        cells = [str(outcome.ratio(other, OURS) or _no_ratio(outcome, other)) for other in others]
        rows.append([name, *cells, f"{best[1]}, {best[0]}" if best else "none"])
    count = len(bench.tasks)
    means = [*(mean_over_tasks(bench, other) for other in others), mean_over_best(bench)]
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
    return _over(outcome, other, OURS) or "not measured"


# --------------------------------------------------------------------------------------------------
# Text


def text(bench: Bench) -> str:
    """Return the bench as text for a terminal."""
    return "\n\n".join(_paragraphs(bench, text_table, ""))


def markdown_tables(bench: Bench, heading: str = "## ") -> str:
    """Return the tables as Markdown, each under a title that begins with `heading`."""
    return "\n\n".join(_paragraphs(bench, markdown_table, heading))


def markdown(bench: Bench, picture: str) -> str:
    """Return the content of a Markdown file that lies beside the file `picture` and shows it."""
    words = chart(bench).alternative_text
    parts = [f"# gallery {bench.kind}", f"![{words}]({picture})", markdown_tables(bench)]
    return "\n\n".join(parts) + "\n"


def _paragraphs(bench: Bench, table: Callable[[Rows], str], heading: str) -> list[str]:
    parts = []
    for name, outcome in bench.tasks.items():
        sizes = ", ".join(f"{key.replace('_', ' ')} {n}" for key, n in outcome.sizes.items())
        parts.append(f"{heading}{name}: {sizes}" if sizes else f"{heading}{name}")
        if outcome.reason is not None:
            parts.append(f"Not measured: {outcome.reason}")
            continue
        parts.append(table(task_rows(outcome, bench.kind)))
        techniques = next((outcome.rows[n].techniques for n in BEST if n in outcome.rows), {})
        if techniques:
            done = "; ".join(f"{name}: {what}" for name, what in techniques.items())
            parts.append(f"At its best: {done}.")
    if bench.kind == "bench" and any(OURS in outcome.rows for outcome in bench.tasks.values()):
        parts += [f"{heading}ours beside the others", table(summary_rows(bench))]
    versions = ", ".join(
        f"{name} {number}" for name, number in bench.versions.items() if number != "not installed"
    )
    machine = hardware.describe(bench.environment)
    parts += [f"{machine}. Versions: {versions}. Command: `{bench.command}`.", _READ]
    return [*parts, _READ_FORMS] if bench.kind == "bench" else parts


def complete(bench: Bench) -> bool:
    """Return whether every task was measured, and ours ran with parity."""
    return all(
        outcome.reason is None and (OURS not in outcome.rows or outcome.rows[OURS].comparable)
        for outcome in bench.tasks.values()
    )


# --------------------------------------------------------------------------------------------------
# Charts


def chart(bench: Bench) -> Chart:
    """Return the chart of a bench or a waterfall.

    A bench has a bar per task for ours over the baseline, the longest first, and a tick for the
    best of the others. Bars have intervals; ticks have none. A waterfall has a bar per technique.
    """
    if bench.kind == "waterfall":
        return _waterfall(bench)
    ratios = {name: outcome.ratio(bench.baseline, OURS) for name, outcome in bench.tasks.items()}
    ours = dict(sorted(ratios.items(), key=lambda item: -item[1].ratio if item[1] else 0.0))
    verdicts = [ratio.verdict if ratio else "not measured" for ratio in ours.values()]
    others = [f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts) if v != "faster"]
    title = f"Ours is faster in {verdicts.count('faster')} of {len(ours)} tasks"
    title += f" ({listed(others)})" if others else ""

    def draw() -> Figure:
        bars = [style.Bar(task_title(name), ratio) for name, ratio in ours.items()]
        plot, axes = style.ratio_bars(bars, title, baseline_title(bench))
        _draw_ticks(axes, bench, list(ours))
        return plot

    header, *_ = summary = summary_rows(bench)
    columns = sorted({0, header.index(f"ours over {bench.baseline}"), len(header) - 1})
    return Chart(title, [[row[i] for i in columns] for row in summary], draw)


def _draw_ticks(axes: Any, bench: Bench, tasks: list[str]) -> None:
    """Draw the best of the others over the baseline, for each task that has one."""
    ticks = []
    for place, task in enumerate(tasks):
        best = over_best(bench, task)
        if best and (ratio := bench.tasks[task].ratio(bench.baseline, best[0])):
            ticks.append((ratio.ratio, place))
    if ticks:
        look = {"marker": "|", "markersize": 13, "markeredgewidth": 3, "color": style.OTHERS}
        axes.plot(*zip(*ticks, strict=True), linestyle="", label=_BEST_LABEL, **look)
        handles = [Patch(color=style.OURS, label=OURS), *axes.get_legend_handles_labels()[0]]
        axes.figure.legend(handles=handles, loc="outside lower center", frameon=False, ncols=2)


def _waterfall(bench: Bench) -> Chart:
    """Return the chart of a waterfall; the title has what all techniques gain together."""
    outcome, baseline = next(iter(bench.tasks.values())), baseline_title(bench)
    names = [name for name in outcome.rows if name != outcome.baseline]
    ratios = {name: outcome.ratio(outcome.baseline, name) for name in names}
    title = "No technique could be compared with the baseline"
    if measured := [ratio for ratio in ratios.values() if ratio]:
        whole = measured[-1]
        title = f"All together {whole.ratio:.2f}× as fast as {baseline}"
        if not style.measurable(whole):
            title = f"All together: not measurable ({whole} of {baseline})"
    # Name, step, both ratios and parity.
    header, *body = ([r[0], r[1], *r[6:]] for r in task_rows(outcome, bench.kind))
    rows = [[*header, "what it does"]]
    rows += [[*row, MEANINGS.get(row[0].removeprefix("+ "), "")] for row in body]
    bars = [style.Bar(f"+ {name}", ratio) for name, ratio in ratios.items()]
    return Chart(title, rows, lambda: style.ratio_bars(bars, title, baseline, plain=baseline)[0])

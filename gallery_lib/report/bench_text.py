"""Report of a bench as text and as Markdown: its tables, the chart, and how to read the figures."""

from __future__ import annotations

from collections.abc import Callable

from gallery_lib.console.table import Rows, markdown_table, seconds, text_table
from gallery_lib.measure.bench.result import BEST, OURS, Bench, Outcome
from gallery_lib.report import bench_chart, roofline
from gallery_lib.report.bench_tables import compared_with, summary_rows, task_rows
from gallery_lib.system import hardware


def text(bench: Bench) -> str:
    """Return the bench as text for a terminal."""
    return "\n\n".join(_parts(bench, text_table, ""))


def markdown_tables(bench: Bench, heading: str = "## ") -> str:
    """Return the tables as Markdown, each under a title that begins with `heading`."""
    return "\n\n".join(_parts(bench, markdown_table, heading))


def markdown(bench: Bench, picture: str) -> str:
    """Return the content of a Markdown file that lies beside the file `picture` and shows it."""
    words = bench_chart.chart(bench).alternative_text
    parts = [f"# gallery {bench.kind}", f"![{words}]({picture})", markdown_tables(bench)]
    return "\n\n".join(parts) + "\n"


def _parts(bench: Bench, table: Callable[[Rows], str], heading: str) -> list[str]:
    parts = []
    for name, outcome in bench.tasks.items():
        sizes = ", ".join(f"{key.replace('_', ' ')} {n}" for key, n in outcome.sizes.items())
        parts.append(f"{heading}{name}: {sizes}" if sizes else f"{heading}{name}")
        if outcome.reason is not None:
            parts.append(f"Not measured: {outcome.reason}")
            continue
        parts += [table(task_rows(outcome, bench.kind)), *_below(outcome)]
        if outcome.roofline is not None:
            parts.append(roofline.summary(outcome.roofline))
            parts.append(table(roofline.group_rows(outcome.roofline)))
    if bench.kind == "bench" and any(OURS in outcome.rows for outcome in bench.tasks.values()):
        parts += [f"{heading}ours beside the others", table(summary_rows(bench))]
    return [*parts, *_notes(bench)]


def _below(outcome: Outcome) -> list[str]:
    """Return the lines below a task's table: the machine's limits, waits, and best forms."""
    products = ", ".join(
        f"{rate / 1e9:.0f} GFLOP/s in {name}"
        for name, rate in outcome.limits.items()
        if name != "copy"
    )
    lines = [
        f"Limits of the machine, measured just before: matrix products {products}; copying "
        f"{outcome.limits['copy'] / 1e9:.1f} GB/s."
    ]
    ran = {name: row for name, row in outcome.rows.items() if row.reason is None}
    waits = [f"{name} {seconds(r.hidden_wait)}" for name, r in ran.items() if r.hidden_wait]
    if waits:
        lines.append(
            "The loader is slower than the steps, and batches arrive in bursts. Beyond the median "
            f"step a sustained one waits for data: {', '.join(waits)}."
        )
    techniques = next((ran[name].techniques for name in BEST if name in ran), {})
    if techniques:
        done = "; ".join(f"{name}: {what}" for name, what in techniques.items())
        lines.append(f"At its best: {done}.")
    return lines


def _notes(bench: Bench) -> list[str]:
    """Return the conditions and how to read the figures, a paragraph each."""
    versions = ", ".join(
        f"{name} {number}" for name, number in bench.versions.items() if number != "not installed"
    )
    machine = hardware.describe(bench.environment)
    notes = [
        f"{machine}. Versions: {versions}. Command: `{bench.command}`.",
        "Variants of a task took turns. Intervals are of steady-state steps (bootstrap over "
        "turns); `whole run` counts start-up as well. GB/s: bytes that eager operators move, over "
        "this variant's time; what fuses them moves less and may exceed the limit.",
    ]
    if bench.kind != "bench":
        return notes
    if any(name in BEST for name in compared_with(bench)):
        notes.append(
            "As it comes: eager and the peers without `-best`, as their documentation shows them. "
            "At its best: with `-best`, as somebody who tunes by hand uses it: torch's fused "
            "optimizer where it has one, channels_last where convolutions gain from it, on a CPU "
            "glibc told to keep large blocks (GLIBC_TUNABLES), and the mode of torch.compile that "
            "the table names. The best of the others is, in each task, the one that ours has the "
            "smallest lead over."
        )
    else:
        fused = bench.options.get("fused")
        form = "a fused one in every variant" if fused else "torch's as it comes; ours: a fused one"
        notes.append(f"Optimizer: {form}.")
    return [
        *notes,
        f"Parity is with {bench.baseline}, held against float64. Two variants have a ratio where "
        "both pass, or, where one of them does not, if they compute the same training as one "
        "another.",
    ]


def complete(bench: Bench) -> bool:
    """Return whether every task was measured, and ours ran with parity.

    In a waterfall, every technique that applies must have run with parity.
    """
    for outcome in bench.tasks.values():
        judged = [
            row for name, row in outcome.rows.items() if bench.kind == "waterfall" or name == OURS
        ]
        applied = [row for row in judged if not str(row.reason).startswith("does not apply")]
        if outcome.reason is not None or not all(row.comparable for row in applied):
            return False
    return True

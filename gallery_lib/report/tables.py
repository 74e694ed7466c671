"""Tables of results, as plain text for a terminal and as Markdown for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gallery_lib.console.table import Rows, markdown_table, number, rate, text_table
from gallery_lib.console.table import seconds as _seconds
from gallery_lib.errors import InputError
from gallery_lib.report import verdict
from gallery_lib.report.folded import folded
from gallery_lib.train.results import Results, check_folder, data_lines, read_results

if TYPE_CHECKING:
    from gallery_lib.measure.comparison.result import Comparison


def _gibibytes(value: int | None) -> str:
    return "no GPU" if value is None else f"{number(value / 2**30)} GiB"


def _losses(results: Results) -> str:
    first, last = results.loss["first"], results.loss["last"]
    return "not finite" if None in (first, last) else f"{number(first)} → {number(last)}"


def results_rows(results: Results) -> Rows:
    """Return the table of one run, with a line for each measured quantity."""
    rows = [["figure", "value"]]
    rows += [
        [f"step time {name}", _seconds(results.step_seconds[name])]
        for name in ("p50", "p75", "p90", "p95")
    ]
    rates = results.samples_per_second
    start_up, compiling = (_seconds(results.startup_seconds[name]) for name in ("total", "compile"))
    rows += [
        ["steady state, all processes", rate(rates["global"])],
        ["steady state, per device", rate(rates["per_device"])],
        ["whole run, with start-up", rate(rates["whole_run"])],
        [
            "start-up",
            f"{start_up}, of which compiling {compiling}"
            if results.startup_seconds["compile"]
            else start_up,
        ],
        ["peak memory, host", _gibibytes(results.peak_memory_bytes["host"])],
        ["peak memory, device", _gibibytes(results.peak_memory_bytes["device"])],
        ["loss, first → last", _losses(results)],
    ]
    rows += [
        [
            "resumed",
            f"at step {one['step']}, {one['lost_steps']} steps done again, "
            f"{one['processes']} process{'' if one['processes'] == 1 else 'es'}",
        ]
        for one in results.interruptions
    ]
    rows += [[f"held-out {name}", number(value)] for name, value in results.metrics.items()]
    return rows + [[f"backend: {name}", what] for name, what in results.techniques.items()]


def results_text(results: Results) -> str:
    """Return one run as text for a terminal."""
    processes = f"{results.world_size} process{'' if results.world_size == 1 else 'es'}"
    title = (
        f"{verdict.task_name(results.task)}, {processes}, {verdict.precision(results)}, "
        f"{verdict.batch(results)}"
    )
    return f"\n{title}\n{text_table(results_rows(results))}"


def comparison_rows(comparison: Comparison) -> Rows:
    """Return a table of both variants side by side."""
    names = list(comparison.variants)
    both = list(comparison.variants.values())
    rows = [["", *names]]
    rows += [
        [f"step time {name}", *(_seconds(r.step_seconds[name]) for r in both)]
        for name in ("p50", "p75", "p90", "p95")
    ]
    rows += [
        ["steady state", *(rate(r.samples_per_second["global"]) for r in both)],
        ["whole run, with start-up", *(rate(r.samples_per_second["whole_run"]) for r in both)],
        ["start-up", *(_seconds(r.startup_seconds["total"]) for r in both)],
        [
            "… of which compiling",
            *(_seconds(t) if (t := r.startup_seconds["compile"]) else "none" for r in both),
        ],
        ["peak memory, host", *(_gibibytes(r.peak_memory_bytes["host"]) for r in both)],
        ["page faults a step, host", *(f"{r.page_faults:,.0f}" for r in both)],
        ["peak memory, device", *(_gibibytes(r.peak_memory_bytes["device"]) for r in both)],
        ["loss, first → last", *map(_losses, both)],
    ]
    for name, value in comparison.baseline.metrics.items():
        label = f"held-out {name}" + (
            f" (chance {number(comparison.chance[name])})" if name in comparison.chance else ""
        )
        rows.append([label, number(value), number(comparison.candidate.metrics[name])])
    return rows


def parity_rows(comparison: Comparison) -> Rows:
    """Return a table of the parity checks.

    A line has the worst value, the limit that held there, and what is compared.
    """
    rows = [
        [
            "parity check",
            "worst",
            "limit",
            "where",
            "",
            "what is compared, and why the limit is there",
        ]
    ]
    return rows + [
        [
            c.name,
            number(c.worst),
            number(c.limit),
            c.where,
            "passed" if c.passed else "FAILED",
            verdict.meaning_of(c),
        ]
        for c in comparison.parity.checks
    ]


def _parity_text(comparison: Comparison) -> str:
    """Return the parity checks as text for a terminal.

    What each check compares stands below the table, where there is room.
    """
    explained = [
        f"  {check.name}: {verdict.meaning_of(check)}" for check in comparison.parity.checks
    ]
    return "\n".join([text_table([row[:-1] for row in parity_rows(comparison)]), *explained])


def techniques_rows(techniques: Mapping[str, str]) -> Rows:
    """Return a table of what the backend did in a run."""
    return [["technique", "in this run"], *([name, what] for name, what in techniques.items())]


def comparison_text(comparison: Comparison) -> str:
    """Return a comparison as text for a terminal: the verdict, then the details."""
    techniques = [f"  {name}: {what}" for name, what in comparison.candidate.techniques.items()]
    parts = [
        "",
        *verdict.lines(comparison),
        "",
        verdict.conditions_line(comparison),
        text_table(comparison_rows(comparison)),
        "",
        _parity_text(comparison),
        "",
        verdict.break_even_line(comparison),
        *(f"Data: {line}" for line in data_lines(comparison.baseline.data)),
        "What the backend did:",
        *techniques,
        f"results: {comparison.folder}/comparison.json",
    ]
    return "\n".join(parts)


def comparison_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown for a notebook: the verdict, with the details folded."""
    first, *others = verdict.lines(comparison)
    details = [
        markdown_table(comparison_rows(comparison)),
        markdown_table(parity_rows(comparison)),
        verdict.break_even_line(comparison),
        f"*{verdict.conditions_line(comparison)}*",
    ]
    return "\n\n".join(
        [
            f"**{first}**",
            *others,
            folded("Details: times, memory, parity, conditions", "\n\n".join(details)),
        ]
    )


def scaling_rows(one: Comparison, several: Comparison) -> Rows:
    """Return a table of throughput on one process and on several, and their ratio.

    Where processes have devices of their own, the table has their scaling efficiency too. Processes
    that share the cores of one CPU have no more to compute with than one process, so they have no
    efficiency.
    """
    n = several.baseline.world_size
    shared = one.baseline.environment["device"] == "cpu"
    rows = [
        ["", "1 process", f"{n} processes", f"{n} processes over 1"]
        + ([] if shared else ["scaling efficiency"])
    ]
    for name in one.variants:
        alone, together = (c.variants[name].samples_per_second["global"] for c in (one, several))
        row = [name, rate(alone), rate(together), f"{together / alone:.2f}×"]
        rows.append(row if shared else [*row, f"{together / alone / n:.0%}"])
    return rows


def scaling_note(one: Comparison, several: Comparison) -> str:
    """Return a note on how to read `scaling_rows`; '' where none is needed."""
    n, batches = (
        several.baseline.world_size,
        [c.baseline.config["batch_size"] for c in (one, several)],
    )
    gains = [
        several.variants[name].samples_per_second["global"]
        / one.variants[name].samples_per_second["global"]
        for name in one.variants
    ]
    if one.baseline.environment["device"] == "cpu":
        note = (
            f"One process already has every CPU core, and {n} share the same cores ({batches[0]} "
            f"samples a step alone, {batches[1]} a process together). So no gain is to be expected"
        )
        return (
            f"{note}; where there is one, one process does not keep all cores at work."
            if max(gains) > 1
            else f"{note}."
        )
    if max(gains) > n:
        return (
            "More than 100 %: the two columns were measured one after the other, not in turns, so "
            "the machine was slower for the first. Read it as 100 %."
        )
    return ""


def scaling_markdown(one: Comparison, several: Comparison) -> str:
    """Return the scaling table and its note as Markdown for a notebook."""
    return "\n\n".join(
        filter(None, [markdown_table(scaling_rows(one, several)), scaling_note(one, several)])
    )


def folder_text(folder: Path | str) -> str:
    """Return the tables of every comparison and of every other run at or below `folder`.

    Raises:
        InputError: when there is none.
    """
    from gallery_lib.measure.comparison.result import read_comparison

    check_folder(folder)
    root = Path(folder)
    comparisons = sorted(path.parent for path in root.rglob("comparison.json"))
    runs = sorted(
        p.parent for p in root.rglob("results.json") if not any(c in p.parents for c in comparisons)
    )
    if not comparisons and not runs:
        raise InputError(f"{root} holds no finished run and no comparison.", parameter=str(root))
    return "\n".join(
        [comparison_text(read_comparison(c)) for c in comparisons]
        + [results_text(read_results(r)) for r in runs]
    )

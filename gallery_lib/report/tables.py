"""Tables of results, as plain text for a terminal and as Markdown for a notebook.

Parts of a notebook's output are folded until a reader opens them. `<details>` is HTML that
JupyterLab keeps in the Markdown of an untrusted notebook, and that GitHub and the site show.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gallery_lib.console.text import Rows, markdown_table, number, rate, text_table
from gallery_lib.console.text import seconds as _seconds
from gallery_lib.errors import InputError
from gallery_lib.report import verdict
from gallery_lib.train.results import (
    Results,
    check_folder,
    data_lines,
    hidden_wait,
    load_line,
    read_results,
)

if TYPE_CHECKING:
    from gallery_lib.measure.comparison.result import Comparison


def folded(title: str, content: str) -> str:
    """Return Markdown that shows only the title until a reader opens it."""
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>"


def unfolded(markdown: str) -> str:
    """Return the text with the content of each folded part below its title."""
    part = re.compile(r"<details>\n<summary>(.*?)</summary>\n\n(.*?)\n\n</details>", re.DOTALL)
    return part.sub(r"\1:\n\n\2", markdown)


def _gibibytes(value: int | None) -> str:
    return "no GPU" if value is None else f"{number(value / 2**30)} GiB"


def _compiling(results: Results) -> str:
    value = results.startup_seconds["compile"]
    return _seconds(value) if value else "none"


def _sustained(results: Results) -> str:
    if "step_seconds" not in results.sustained:
        return "not measured"
    step = _seconds(results.sustained["step_seconds"])
    return f"{rate(results.samples_per_second['sustained'])}, {step} a step"


def _losses(results: Results) -> str:
    first, last = results.loss["first"], results.loss["last"]
    return "not finite" if None in (first, last) else f"{number(first)} → {number(last)}"


# Lines of the table of a run or a comparison.
_MEASURED: dict[str, Callable[[Results], str]] = {
    "step time p50": lambda run: _seconds(run.step_seconds["p50"]),
    "step time p75": lambda run: _seconds(run.step_seconds["p75"]),
    "step time p90": lambda run: _seconds(run.step_seconds["p90"]),
    "step time p95": lambda run: _seconds(run.step_seconds["p95"]),
    "steady state, all processes": lambda run: rate(run.samples_per_second["global"]),
    "steady state, per device": lambda run: rate(run.samples_per_second["per_device"]),
    "sustained, with waits for data": _sustained,
    "whole run, with start-up": lambda run: rate(run.samples_per_second["whole_run"]),
    "start-up": lambda run: _seconds(run.startup_seconds["total"]),
    "… of which compiling": _compiling,
    "peak memory, host": lambda run: _gibibytes(run.peak_memory_bytes["host"]),
    "page faults a step, host": lambda run: f"{run.page_faults:,.0f}",
    "peak memory, device": lambda run: _gibibytes(run.peak_memory_bytes["device"]),
    "reserved memory, device": lambda run: _gibibytes(run.peak_memory_bytes.get("device_reserved")),
    "GPU at work": lambda run: str(run.gpu or "does not say"),
    "loss, first → last": _losses,
}


def measured_rows(runs: Mapping[str, Results], chance: Mapping[str, float]) -> Rows:
    """Return a table of runs side by side, with a line for each measured quantity."""
    on_gpu = any(run.environment["device"] != "cpu" for run in runs.values())
    waits = any(hidden_wait(r.step_seconds["p50"], r.sustained) for r in runs.values())
    shown = {"sustained, with waits for data": on_gpu or waits}
    shown |= dict.fromkeys(("reserved memory, device", "GPU at work"), on_gpu)
    peaks = [run.peak_memory_bytes for run in runs.values()]
    late = {"peak memory, device": all("device_reserved" in its for its in peaks)}
    rows = [["", *runs]]
    rows += [
        [f"{name}, after warm-up" if late.get(name) else name, *map(cell, runs.values())]
        for name, cell in _MEASURED.items()
        if shown.get(name, True)
    ]
    for name in next(iter(runs.values())).metrics:
        label = f"held-out {name}"
        label += f" (chance {number(chance[name])})" if name in chance else ""
        values = (run.metrics.get(name, math.nan) for run in runs.values())
        rows.append([label, *map(number, values)])
    return rows


def results_text(results: Results) -> str:
    """Return one run as text for a terminal."""
    processes = f"{results.world_size} process{'' if results.world_size == 1 else 'es'}"
    title = (
        f"{verdict.task_name(results.task)}, {processes}, {verdict.precision(results)}, "
        f"{verdict.batch(results)}"
    )
    rows = [*measured_rows({"value": results}, {})]
    again = "at step {step}, {lost_steps} steps done again, {processes} process(es)"
    rows += [["resumed", again.format(**one)] for one in results.interruptions]
    rows += [[f"backend: {name}", what] for name, what in results.techniques.items()]
    parts = ["", title, text_table(rows)]
    if results.tuning:
        parts += ["", f"Why it runs so, of the candidates of --tune:\n{results.tuning}"]
    said = (verdict.loader_line({"this run": results}), load_line(results))
    return "\n".join([*parts, *filter(None, said)])


def parity_rows(comparison: Comparison) -> Rows:
    """Return a table of the parity checks, with the limit that held where a value was worst.

    Limits of most checks are three times the baseline's own distance, and a tolerance.
    """
    header = ["parity check", "worst", "baseline's own", "limit", "where", ""]
    return [[*header, "what is compared"]] + [
        [
            c.name,
            verdict.figure(c.worst),
            "" if c.baselines is None else number(c.baselines),
            verdict.figure(c.limit),
            c.where,
            "passed" if c.passed else "FAILED",
            verdict.MEANINGS.get(c.name, ""),
        ]
        for c in comparison.parity.checks
    ]


def comparison_text(comparison: Comparison, *, details: bool = True) -> str:
    """Return a comparison as text for a terminal: the tables, and last the verdict.

    Without `details` there is one table, and parity has a line if it passed.
    """
    parity = text_table([row[:-1] for row in parity_rows(comparison)])
    measured = measured_rows(comparison.variants, comparison.chance)
    parts = ["", verdict.conditions_line(comparison), text_table(measured)]
    if details:
        parts += [
            "",
            parity,
            *(f"  {row[0]}: {row[-1]}" for row in parity_rows(comparison)[1:]),
            "",
            verdict.break_even_line(comparison),
            *(f"Data: {line}" for line in data_lines(comparison.baseline.data)),
            "What the backend did:",
            *(f"  {name}: {what}" for name, what in comparison.candidate.techniques.items()),
            *filter(None, [comparison.candidate.tuning]),
        ]
    elif not comparison.parity.passed:
        parts += ["", parity]
    parts += ["", *verdict.lines(comparison)]
    return "\n".join([*parts, "", f"results: {comparison.folder}/comparison.json"])


def comparison_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown for a notebook: the verdict, with the details folded."""
    first, *others = verdict.lines(comparison)
    details = [
        markdown_table(measured_rows(comparison.variants, comparison.chance)),
        markdown_table(parity_rows(comparison)),
        verdict.break_even_line(comparison),
        f"*{verdict.conditions_line(comparison)}*",
    ]
    below = folded("Details: times, memory, parity, conditions", "\n\n".join(details))
    return "\n\n".join([f"**{first}**", *others, below])


def scaling_markdown(one: Comparison, several: Comparison) -> str:
    """Return throughput on one process and on several as a Markdown table, and how to read it.

    Where processes have devices of their own, the table has their scaling efficiency too. Processes
    that share the cores of one CPU have no more to compute with than one process, so they have no
    efficiency.
    """
    n, shared = several.baseline.world_size, one.baseline.environment["device"] == "cpu"
    rows = [["", "1 process", f"{n} processes", f"{n} processes over 1"]]
    if not shared:
        rows[0].append("scaling efficiency")
    rates = {
        name: [c.variants[name].samples_per_second for c in (one, several)] for name in one.variants
    }
    every = [its for pair in rates.values() for its in pair]
    kind = "sustained" if all("sustained" in its for its in every) else "global"
    for name, pair in rates.items():
        alone, together = (its[kind] for its in pair)
        rows.append([name, rate(alone), rate(together), f"{together / alone:.2f}×"])
        rows[-1] += [] if shared else [f"{together / alone / n:.0%}"]
    parts = [markdown_table(rows)]
    if shared:
        alone, together = (c.baseline.config["batch_size"] for c in (one, several))
        parts.append(
            f"One process already has every CPU core, and {n} share the same cores ({alone} "
            f"samples a step alone, {together} a process together), so no gain is to be expected."
        )
    return "\n\n".join(parts)


def folder_text(folder: Path | str) -> str:
    """Return the tables of every comparison and of every other run at or below `folder`."""
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

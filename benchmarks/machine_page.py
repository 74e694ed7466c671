"""Pages of one machine: all that was measured there, and every variant of a bench."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import bench_summary
from bench_summary import Run, runs_of
from page_kinds import KINDS, kind_of
from published import File, Machine, days

from gallery_lib.console.table import Rows, markdown_table
from gallery_lib.report.bench.figure import figure_text
from gallery_lib.report.bench.text import markdown_tables

_ENVIRONMENT = ("python", "torch")


def machine_page(machine: Machine) -> str:
    """Return the page of one machine."""
    runs = runs_of(machine)
    parts = [f"# {machine.name}", machine.about, markdown_table(_conditions(machine))]
    if runs:
        parts += _bench_section(machine, runs)
    for kind in KINDS:
        files = [file for file in machine.files if kind_of(file) == kind]
        if files:
            parts += [
                f"## {kind.heading}",
                kind.reading,
                *([kind.table(files)] if kind.table else []),
                _sources(machine, files),
            ]
    return "\n\n".join([*parts, "## Not run on this machine", _not_here(machine, runs)]) + "\n"


def _conditions(machine: Machine) -> Rows:
    rows = [
        ["condition", ""],
        ["hardware", machine.hardware],
        ["versions", _versions(machine)],
        ["measured", days(machine.files)],
    ]
    limits = _limits(machine)
    return (
        [*rows, ["limits (matrix products by dtype, and memory)", "; ".join(limits)]]
        if limits
        else rows
    )


def _span(values: Iterable[float]) -> str:
    ordered = sorted(values)
    low, high = (
        f"{value:.0f}" if value >= 10 else f"{value:.1f}" for value in (ordered[0], ordered[-1])
    )
    return low if low == high else f"{low} to {high}"


def _limits(machine: Machine) -> list[str]:
    rates: dict[str, list[float]] = {}
    for file in machine.files:
        for outcome in file.bench.tasks.values() if file.bench else ():
            for name, rate in outcome.limits.items():
                rates.setdefault(name, []).append(rate / 1e9)
    return [
        f"copying {_span(values)} GB/s" if name == "copy" else f"{name} {_span(values)} GFLOP/s"
        for name, values in sorted(rates.items())
    ]


def _versions(machine: Machine) -> str:
    by_name: dict[str, dict[str, None]] = {name: {} for name in _ENVIRONMENT}
    for file in machine.files:
        versions = {name: str(file.environment[name]) for name in _ENVIRONMENT} | (
            file.bench.versions if file.bench else {}
        )
        for name, version in versions.items():
            if version != "not installed" and name != "gallery_lib":
                by_name.setdefault(name, {})[version.partition("+")[0]] = None
    return ", ".join(f"{name} {' and '.join(versions)}" for name, versions in by_name.items())


def _sources(machine: Machine, files: Sequence[File], *, page: bool = False) -> str:
    """Return where the figures of a section are from: files with date, code and command.

    Runs of the same question stand together. With `page`, each bench links to its page.
    """
    groups: dict[tuple[str | None, ...], list[File]] = {}
    for file in files:
        key = (
            file.series,
            file.environment.get("git"),
            file.command,
            machine.notes.get(file.name),
            file.name if page else None,
        )
        groups.setdefault(key, []).append(file)
    lines = []
    for (_, code, command, note, _), runs in groups.items():
        links = [
            f"[{runs[0].path.name}]({runs[0].path.name})",
            *(f"[{file.run}]({file.path.name})" for file in runs[1:]),
        ]
        links += [f"[every variant]({runs[0].name}.md)"] if page else []
        conditions = [
            days(runs),
            *([f"code {code}"] if code else []),
            f"`{command}`",
        ]
        lines.append(
            f"- {', '.join(links)}: {', '.join(conditions)}." + (f" {note}" if note else "")
        )
    return "\n".join(lines)


def _bench_section(machine: Machine, runs: Sequence[Run]) -> list[str]:
    newest = max(runs, key=lambda run: (len(run.others), run.number))
    picture = newest.files[0]
    assert picture.bench is not None
    parts = [
        "## Beside what could be used instead",
        "Geometric means over tasks, with 99 % intervals.",
        markdown_table(bench_summary.means_rows(runs)),
        f"![{figure_text(picture.bench)}]({picture.name}.png)",
        "### Task by task",
        "The last run of each size. "
        "*Best peer*: the one over which ours gains least, among those that were measured.",
        markdown_table(bench_summary.task_rows(runs)),
        "### Runs",
    ]
    return [*parts, _sources(machine, [file for run in runs for file in run.files], page=True)]


def _not_here(machine: Machine, runs: Sequence[Run]) -> str:
    missing = [
        f"{size} inputs (`python3 benchmarks/bench.py MACHINE{flag}`)"
        for size, flag in (("small", ""), ("large", " --profile large"))
        if not any(r.size == size for r in runs)
    ]
    if runs and not any(len(run.others) > 2 for run in runs):
        missing.append("torch.compile, Accelerate and Fabric")
    kinds = {kind for file in machine.files if (kind := kind_of(file))}
    on_cpu = machine.files[0].environment["device"] == "cpu"
    missing += [
        f"{kind.heading} (`{kind.command}`)"
        for kind in KINDS
        if kind not in kinds and not (on_cpu and kind.needs_gpu)
    ]
    if on_cpu:
        missing.append("anything on a GPU: there is none")
    return "\n".join(f"- {what}" for what in missing)


def bench_page(machine: Machine, run: Run, file: File) -> str:
    """Return the page of one bench: every variant of every task."""
    assert file.bench is not None
    several = [other for other in runs_of(machine) if other.size == run.size]
    title = (
        f"# {run.size.capitalize()} inputs{f', run {run.number}' if len(several) > 1 else ''}: "
        f"{machine.name}"
    )
    tasks = "" if len(run.files) == 1 else f"Tasks: {', '.join(file.bench.tasks)}."
    parts = [
        title,
        *filter(None, [machine.notes.get(file.name), tasks]),
        f"![{figure_text(file.bench)}]({file.name}.png)",
    ]
    return "\n\n".join([*parts, markdown_tables(file.bench)]) + "\n"

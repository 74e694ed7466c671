"""Pages of `results/`, made from the raw files.

There is one page for each machine, one for each bench, and a summary across machines.

    python3 benchmarks/pages.py             write the pages
    python3 benchmarks/pages.py --check     write nothing; exit code 1 where a page would change

The pages are results/README.md, results/MACHINE/README.md and results/MACHINE/bench-….md. No figure
on a page is typed by hand. A picture that is missing is drawn; delete it to have it drawn anew. To
publish figures, put a raw file into its machine's folder under a name that `page_kinds.py` knows,
and run this script. A new folder needs a `machine.yaml`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import bench_summary
from bench_summary import Run, runs_of
from common import RESULTS
from page_kinds import KINDS, kind_of
from published import File, Machine, read_machines

from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.console.table import Rows, markdown_table
from gallery_lib.measure.bench.result import Bench
from gallery_lib.measure.replay.sweep import read_sweep
from gallery_lib.report import bench as bench_tables
from gallery_lib.report import replay_plots

PAGE = "README.md"
_MADE = "<!-- Made by `python3 benchmarks/pages.py` from the raw files beside it. Do not edit. -->"
_SUMMARY = (
    "# Results across machines\n\n"
    "What was measured on which machine, made from the raw files in the machines' folders. *Ours*: "
    "the accelerated backend. A ratio says how\nmany times as fast ours is, with its 99 % "
    "interval: median step times of variants that took turns, where both compute the same "
    "training\n(parity). A mean is geometric, over tasks. *Small inputs*: each task's `quick` "
    "size. *Large inputs*: 224² pixels, 128 tokens or 50\nframes. Machines' pages name the sizes. "
    "*At its best*: with a fused optimizer, the same allocator settings, and what else a user "
    "could\ntune by hand.\n\n"
    "A figure holds for its machine and for the code of its date. What no page names, any GPU for "
    "one, **has not been measured**. How far\ncomparisons can be believed, and what else was "
    "found: [notes](../notes/README.md)."
)
_ENVIRONMENT = ("python", "torch")
_PRECISIONS = {"O0": "O0 (fp32)", "O1": "O1 (autocast)"}


def _span(values: Iterable[float]) -> str:
    ordered = sorted(values)
    low, high = (
        f"{value:.0f}" if value >= 10 else f"{value:.1f}" for value in (ordered[0], ordered[-1])
    )
    return low if low == high else f"{low} to {high}"


def _dates(dates: Iterable[str]) -> str:
    ordered = sorted(dates)
    first, last = ordered[0], ordered[-1]
    return first if first == last else f"{first} to {last}"


def _benches(machine: Machine) -> list[Bench]:
    return [file.bench for file in machine.files if file.bench is not None]


def _limits(machine: Machine) -> list[str]:
    found: dict[str, list[float]] = {}
    for bench in _benches(machine):
        for outcome in bench.tasks.values():
            for name, rate in outcome.limits.items():
                found.setdefault(name, []).append(rate / 1e9)
    return [
        f"copying {_span(rates)} GB/s" if name == "copy" else f"{name} {_span(rates)} GFLOP/s"
        for name, rates in sorted(found.items())
    ]


def _versions(machine: Machine) -> str:
    found: dict[str, dict[str, None]] = {name: {} for name in _ENVIRONMENT}
    for file in machine.files:
        versions = {name: str(file.environment[name]) for name in _ENVIRONMENT} | (
            file.bench.versions if file.bench else {}
        )
        for name, version in versions.items():
            if version != "not installed" and name != "gallery_lib":
                found.setdefault(name, {})[version.partition("+")[0]] = None
    return ", ".join(f"{name} {' and '.join(versions)}" for name, versions in found.items())


def _conditions(machine: Machine) -> Rows:
    rows = [
        ["condition", ""],
        ["hardware", machine.hardware],
        ["versions", _versions(machine)],
        ["measured", _dates(date for file in machine.files for date in file.dates)],
    ]
    limits = _limits(machine)
    return (
        [*rows, ["limits (matrix products by dtype, and memory)", "; ".join(limits)]]
        if limits
        else rows
    )


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
            _dates(date for file in runs for date in file.dates),
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
        f"![{bench_tables.figure_text(picture.bench)}]({picture.name}.png)",
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
        for size, flag in (("small", ""), ("large", " --large"))
        if not any(r.size == size for r in runs)
    ]
    if runs and not any(len(run.others) > 2 for run in runs):
        missing.append("torch.compile, Accelerate and Fabric")
    there = {kind for file in machine.files if (kind := kind_of(file))}
    on_cpu = machine.files[0].environment["device"] == "cpu"
    missing += [
        f"{kind.heading} (`{kind.command}`)"
        for kind in KINDS
        if kind not in there and not (on_cpu and kind.needs_gpu)
    ]
    if on_cpu:
        missing.append("anything on a GPU: there is none")
    return "\n".join(f"- {what}" for what in missing)


def machine_page(machine: Machine) -> str:
    """Return the page of one machine."""
    runs = runs_of(machine)
    parts = [_MADE, f"# {machine.name}", machine.about, markdown_table(_conditions(machine))]
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
        _MADE,
        title,
        *filter(None, [machine.notes.get(file.name), tasks]),
        f"![{bench_tables.figure_text(file.bench)}]({file.name}.png)",
    ]
    return "\n\n".join([*parts, bench_tables.markdown_tables(file.bench)]) + "\n"


def _at_a_glance(machines: Sequence[Machine]) -> Rows:
    rows = [
        [
            "machine",
            "CPU or GPU",
            "precision",
            "tasks",
            "measured",
            "small inputs: over eager",
            "large inputs: over eager",
        ]
    ]
    for machine in machines:
        runs = runs_of(machine)
        cells = []
        for size in bench_summary.SIZES:
            means = [bench_summary.mean_text(run, run.baseline) for run in runs if run.size == size]
            cells.append("; ".join(means) or "not measured")
        precisions = ", ".join(dict.fromkeys(_PRECISIONS[run.precision] for run in runs)) or "–"
        tasks = len({name for run in runs for name in run.tasks})
        dates = _dates(date for file in machine.files for date in file.dates)
        link = f"[{machine.name}]({machine.folder.name}/{PAGE})"
        rows.append([link, machine.hardware, precisions, str(tasks or "–"), dates, *cells])
    return rows


def summary_page(machines: Sequence[Machine]) -> str:
    """Return the page across machines."""
    parts = [_MADE, _SUMMARY, "## Machines", markdown_table(_at_a_glance(machines))]
    parts += [
        "Over eager at the same precision; where a size was measured several times, run by run."
    ]
    for machine in machines:
        if runs := runs_of(machine):
            parts += [f"## {machine.name}", markdown_table(bench_summary.means_rows(runs))]
            missing = [
                size for size in bench_summary.SIZES if not any(run.size == size for run in runs)
            ]
            peers = dict.fromkeys(
                other
                for run in runs
                for other in run.others
                if other not in ("eager-O1", "eager-fp32")
            )
            notes = (
                [
                    f"""Not measured there: {
                        ", ".join(
                            [*(f"{size} inputs" for size in missing), *([] if peers else ["peers"])]
                        )
                    }."""
                ]
                if missing or not peers
                else []
            )
            parts += [
                *notes,
                "Task by task, and what else was measured there: "
                f"[{machine.name}]({machine.folder.name}/{PAGE}).",
            ]
    return "\n\n".join(parts) + "\n"


def pages(results: Path = RESULTS) -> dict[Path, str]:
    """Return the text of every page, by its path.

    Raises InputError for a folder or file that cannot be published.
    """
    machines = read_machines(results)
    found = {results / PAGE: summary_page(machines)}
    for machine in machines:
        found[machine.folder / PAGE] = machine_page(machine)
        for run in runs_of(machine):
            found |= {
                file.path.with_suffix(".md"): bench_page(machine, run, file) for file in run.files
            }
    return found


def stale(results: Path = RESULTS) -> list[str]:
    """Return the pages that are missing or out of date, and those that nothing makes any more."""
    expected = pages(results)
    different = [
        path
        for path, text in expected.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    return [
        str(path.relative_to(results))
        for path in [*different, *sorted(set(results.rglob("*.md")) - set(expected))]
    ]


def _draw_missing(machines: Sequence[Machine]) -> None:
    for machine in machines:
        for file in machine.files:
            picture = file.path.with_suffix(".png")
            if file.bench is not None and not picture.exists():
                bench_tables.figure(file.bench).savefig(picture, dpi=110)
            elif file.name == "sweep" and not picture.exists():
                replay_plots.scatter(read_sweep(file.path.with_suffix(".csv"))).savefig(
                    picture, dpi=110
                )


def write(results: Path = RESULTS) -> None:
    """Write every page and every missing picture; remove pages that nothing makes any more."""
    made = pages(results)
    _draw_missing(read_machines(results))
    for path in set(results.rglob("*.md")) - set(made):
        path.unlink()
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Write or check the pages, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit code 1 when a page is not up to date",
    )
    if not parser.parse_args().check:
        write()
        return 0
    if different := stale():
        print(
            f"not up to date: {', '.join(different)}. Run: python benchmarks/pages.py",
            file=sys.stderr,
        )
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(exit_code_of(main, error_prefix="error", interrupted="interrupted"))

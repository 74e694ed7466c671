"""Write the pages of `results/` from the files of figures.

    python3 benchmarks/pages.py             write the pages
    python3 benchmarks/pages.py --check     write nothing; exit code 1 where a page would change

A machine that is still measured has a `machine.yaml` in its folder: `name`, `about`, and under
`files` what a file's run was for. Its page and those of its benches are made from its JSON files.
Pages of a folder without `machine.yaml` are frozen: they stay as they are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import figures_file
import yaml

from gallery_lib.console.text import Rows, markdown_table, seconds
from gallery_lib.errors import InputError
from gallery_lib.measure.bench_result import OURS, Bench, read_bench
from gallery_lib.report.bench import (
    chart,
    compared_with,
    markdown_tables,
    mean_over_tasks,
    over_best,
)
from gallery_lib.system import hardware

ABOUT, PAGE = "machine.yaml", "README.md"
_MADE = "<!-- Made by `python3 benchmarks/pages.py` from the files beside it. Do not edit. -->"


@dataclass(frozen=True)
class Figures:
    """A file of figures. Its name is what it answers, and may end with the number of the run."""

    path: Path
    content: dict[str, Any]
    note: str

    @property
    def order(self) -> tuple[bool, str, int]:
        """Return what files are sorted by: small inputs first, then question and run."""
        name, number = self.path.stem, re.search(r"-(\d+)$", self.path.stem)
        return "small" not in name, _series(name), int(number[1]) if number else 1

    @cached_property
    def bench(self) -> Bench | None:
        """Return the file as a bench if `gallery bench` wrote it, else None."""
        return read_bench(self.path) if "kind" in self.content else None

    @property
    def dates(self) -> list[str]:
        """Return the days on which the figures were measured."""
        tasks = self.bench.tasks.values() if self.bench else ()
        return sorted(outcome.date[:10] for outcome in tasks) or [self.content["date"]]

    @property
    def source(self) -> str:
        """Return a line with the file, its date, code and command, and what its run was for."""
        code = self.content["environment"].get("git")
        command = re.sub(r" --out[ =]\S+", "", self.content["command"])
        page = f", [every variant]({self.path.stem}.md)" if self.bench else ""
        return (
            f"- [{self.path.name}]({self.path.name}){page}: {_days([self])}, "
            f"{f'code {code}, ' if code else ''}`{command}`. {self.note}".rstrip()
        )


def _series(name: str) -> str:
    """Return the name without the number of the run, which the runs of one question share."""
    return re.sub(r"-\d+$", "", name)


@dataclass(frozen=True)
class Machine:
    """A folder of `results/` with its words and its files."""

    folder: Path
    name: str
    about: str
    files: list[Figures]

    @property
    def benches(self) -> dict[str, Bench]:
        """Return the bench of each file of `gallery bench`, by name, without waterfalls."""
        found = {file.path.stem: file.bench for file in self.files}
        return {name: one for name, one in found.items() if one and one.kind == "bench"}


def _days(files: Sequence[Figures]) -> str:
    dates = sorted(date for file in files for date in file.dates)
    return dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"


def read_machine(folder: Path) -> Machine:
    """Read the folder of a machine.

    Raises:
        InputError: for a file that is none of figures, and for figures of two processors.
    """
    words = yaml.safe_load((folder / ABOUT).read_text(encoding="utf-8"))
    notes, files, processors = words.get("files") or {}, [], set()
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if "environment" not in content or not content.keys() & {"shown", "kind"}:
            raise InputError(f"{path} has no figures to show.", parameter=str(path))
        facts = content["environment"]
        processors.add(f"{facts['device']}, {facts['cpu']} ({', '.join(facts['isa'])})")
        files.append(Figures(path, content, notes.get(path.stem, "")))
    if len(processors) != 1:
        found = "; ".join(processors)
        raise InputError(f"{folder} needs figures of one processor: {found}.", parameter="machine")
    files.sort(key=lambda file: file.order)
    return Machine(folder, words["name"], words["about"], files)


def mean_rows(benches: Mapping[str, Bench]) -> Rows:
    """Return the geometric means of ours over each alternative, with a column for each bench."""
    others = sorted({other for bench in benches.values() for other in compared_with(bench)})

    def cell(bench: Bench, other: str) -> str:
        mean, left_out = mean_over_tasks(bench, other)
        count = len(bench.tasks)
        part = f", {count - len(left_out)} of {count} tasks" if mean and left_out else ""
        return f"{mean or '–'}{part}"

    return [
        ["ours is so many times as fast as", *benches],
        *([other, *(cell(bench, other) for bench in benches.values())] for other in others),
    ]


def task_rows(bench: Bench) -> Rows:
    """Return inputs, step times, and ours over eager and over the best of the others, by task."""
    rows = [["task", "input", f"{bench.baseline} → ours", "over eager", "over the best of others"]]
    for name, outcome in bench.tasks.items():
        best, ratio = over_best(bench, name), outcome.ratio(bench.baseline, OURS)
        sides = [outcome.rows.get(side) for side in (bench.baseline, OURS)]
        steps = [seconds(side.step_seconds["p50"]) for side in sides if side and not side.reason]
        sizes = [f"{size.replace('_', ' ')} {value}" for size, value in outcome.sizes.items()]
        cells = [" → ".join(steps), str(ratio or "–"), f"{best[1]}, {best[0]}" if best else "–"]
        rows.append([name, ", ".join(sizes), *cells])
    return rows


def _picture(name: str, bench: Bench) -> str:
    return f"![{chart(bench).alternative_text}]({name}.png)"


def _bench_parts(machine: Machine) -> Iterator[str]:
    yield "## Beside what could be used instead"
    yield "Geometric means over tasks, with 99 % intervals. Names with *best* are tuned by hand."
    yield markdown_table(mean_rows(machine.benches))
    newest = {_series(name): name for name in machine.benches}
    first = next(iter(newest.values()))
    yield _picture(first, machine.benches[first])
    yield "### Task by task"
    yield "The last run of each size of inputs."
    for series, name in newest.items():
        yield f"#### {series.replace('-', ' ').capitalize()}"
        yield markdown_table(task_rows(machine.benches[name]))
    yield "### Runs"
    yield "\n".join(file.source for file in machine.files if file.path.stem in machine.benches)


def _other_parts(machine: Machine) -> Iterator[str]:
    """Yield the table of each other question, with its runs one below the other."""
    by_heading: dict[str, list[Figures]] = {}
    for file in machine.files:
        if file.path.stem not in machine.benches:
            shown = file.content.get("shown", {"heading": "One technique after another"})
            by_heading.setdefault(shown["heading"], []).append(file)
    for heading, files in by_heading.items():
        yield f"## {heading}"
        yield from (_picture(file.path.stem, file.bench) for file in files if file.bench)
        rows: list[list[str]] = []
        for file in files:
            for row in file.content["shown"]["table"][bool(rows) :] if not file.bench else ():
                rows.append([file.path.stem if rows else "file", *row])
        if rows:
            yield markdown_table(rows if len(files) > 1 else [row[1:] for row in rows])
        yield "\n".join(file.source for file in files)


def machine_page(machine: Machine) -> str:
    """Return the page of one machine."""
    without_versions, *_ = hardware.describe(machine.files[0].content["environment"]).split(";")
    measured = f"{without_versions}. Measured {_days(machine.files)}."
    parts = [_MADE, f"# {machine.name}", machine.about, measured]
    parts += _bench_parts(machine) if machine.benches else ()
    return "\n\n".join([*parts, *_other_parts(machine)]) + "\n"


def pages(results: Path) -> dict[Path, str]:
    """Return the text of every page that is made, by its path.

    Raises:
        InputError: for a folder or file that cannot be published.
    """
    machines = [read_machine(path.parent) for path in sorted(results.glob(f"*/{ABOUT}"))]
    texts: dict[Path, str] = {}
    for machine in machines:
        texts[machine.folder / PAGE] = machine_page(machine)
        for file in machine.files:
            if file.bench:
                name = file.path.stem
                title = f"# {name.replace('-', ' ').capitalize()}: {machine.name}"
                parts = [_MADE, title, _picture(name, file.bench), markdown_tables(file.bench)]
                texts[file.path.with_suffix(".md")] = "\n\n".join(parts) + "\n"
    return texts


def write(results: Path = figures_file.RESULTS, *, check: bool = False) -> list[Path]:
    """Write the pages that are out of date, and return them; with `check`, write nothing."""
    texts = pages(results)
    stale = [path for path in texts if not path.exists() or path.read_text("utf-8") != texts[path]]
    for path in stale if not check else ():
        path.write_text(texts[path], encoding="utf-8")
    return stale


def main() -> int:
    """Write or check the pages, and return the exit code."""
    parser = figures_file.parser(__doc__, out=False)
    text = "write nothing; exit code 1 for a page out of date"
    parser.add_argument("--check", action="store_true", help=text)
    check = parser.parse_args().check
    stale = ", ".join(str(path.relative_to(figures_file.HERE)) for path in write(check=check))
    if check and stale:
        print(f"not up to date: {stale}. Run: python3 benchmarks/pages.py", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))

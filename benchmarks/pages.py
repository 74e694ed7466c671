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
from collections.abc import Sequence
from pathlib import Path

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from bench_summary import runs_of
from figures_file import RESULTS
from machine_page import bench_page, machine_page
from published import PAGE, Machine, read_machines
from summary_page import summary_page

from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.measure.replay.sweep_table import read_sweep
from gallery_lib.report.bench.figure import figure
from gallery_lib.report.replay.scatter import scatter

_MADE = "<!-- Made by `python3 benchmarks/pages.py` from the raw files beside it. Do not edit. -->"


def pages(results: Path = RESULTS) -> dict[Path, str]:
    """Return the text of every page, by its path.

    Raises:
        InputError: for a folder or file that cannot be published.
    """
    machines = read_machines(results)
    texts = {results / PAGE: summary_page(machines)}
    for machine in machines:
        texts[machine.folder / PAGE] = machine_page(machine)
        for run in runs_of(machine):
            texts |= {
                file.path.with_suffix(".md"): bench_page(machine, run, file) for file in run.files
            }
    return {path: f"{_MADE}\n\n{text}" for path, text in texts.items()}


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
                figure(file.bench).savefig(picture, dpi=110)
            elif file.name == "sweep" and not picture.exists():
                scatter(read_sweep(file.path.with_suffix(".csv"))).savefig(picture, dpi=110)


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

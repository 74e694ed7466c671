"""Run the notebooks one after another, as `gallery run` does, and write down what came out.

    python3 benchmarks/gallery.py --out benchmarks/results/MACHINE/gallery.json [--only resnet50 …]
    python3 benchmarks/gallery.py --of runs/20261122-040500-gallery --out …

With `--of` nothing runs: the figures are those of a `gallery run` on this machine. Each notebook
runs with its default parameters, unless `-p NAME VALUE` gives others to those that have them, in
the environment that runs this script. The table in `notebooks/index.ipynb` is made from the file.
The file keeps what it has for other notebooks. `gallery compare` compares two such files. Beside
each figure stands a digest of the code that it was measured with, so that the figure can be marked
once the code has changed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from figures_file import conditions, out_file, write_result

from gallery_lib.config import BatchConfig
from gallery_lib.console.exit_code import INTERRUPTED, exit_code_of
from gallery_lib.notebooks.batch import plan, schedule, summary
from gallery_lib.notebooks.batch.record import Record, read_report
from gallery_lib.system import paths

ROOT = Path(__file__).resolve().parent.parent


class Writer(schedule.Observer):
    """Observer that brings the file up to date after each notebook."""

    def __init__(self, out: Path | None, about: dict[str, Any]) -> None:
        """Keep what the file already has for other notebooks."""
        self.out, self.about = out, about
        self.kept: dict[str, Any] = (
            json.loads(out.read_text())["notebooks"] if out and out.exists() else {}
        )

    def ended(self, name: str, record: Record) -> None:
        """Print the outcome and write the file."""
        problem = None if record.status == "passed" else f"{record.status}: {record.reason}"
        ratios = [
            f"{c['processes']} process(es): {c['verdict']}"
            + (f" {c['speedup']['ratio']:.2f}×" if c["speedup"] else "")
            for c in record.comparisons
        ]
        print(
            f"{name:26} {record.seconds:6.0f} s  {problem or 'ran'}  {'; '.join(ratios)}",
            flush=True,
        )
        if record.status == "not run":
            return
        date = (record.date or "")[:10]
        measured = {
            "seconds": record.seconds,
            "problem": problem,
            "comparisons": record.comparisons,
            "date": date,
            "code": record.code,
        }
        self.kept[name] = measured
        if self.out:
            write_result(self.out, {**self.about, "notebooks": dict(sorted(self.kept.items()))})


def main() -> int:
    """Run the notebooks and write the file after each; return 1 when one did not run through."""
    notebooks = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=notebooks,
        default=[n for n in notebooks if n != "index"],
        metavar="NOTEBOOK",
        help="notebooks to run (default: all but index)",
    )
    parser.add_argument(
        "-p",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="value of a parameter, for every notebook that has it; may be given several times",
    )
    parser.add_argument(
        "--out",
        type=out_file,
        help="JSON file for the figures; it keeps what it has of other notebooks",
    )
    parser.add_argument(
        "--of",
        type=Path,
        metavar="BATCH",
        help="run nothing; take the figures from this folder of `gallery run`",
    )
    arguments = parser.parse_args()
    if arguments.of:
        report = read_report(arguments.of)
        profile = {"profile": report.options["profile"]} if report.options.get("profile") else {}
        about = {
            **conditions(),
            "command": re.sub(r" --out \S+", "", report.command),  # a path of the machine
            "date": report.began[:10],
            "parameters": profile,
        }
        del about["load_average_before"]  # it is the load of now, not of that run
        writer = Writer(arguments.out, about)
        for name in (name for name in arguments.only if name in report.notebooks):
            writer.ended(name, report.notebooks[name])
        return 0 if report.passed else 1
    planned = plan.plan(arguments.only, given=dict(arguments.p))
    folder = paths.new_run_dir("gallery")
    writer = Writer(arguments.out, {**conditions(), "parameters": dict(arguments.p)})
    _, report = schedule.run(
        planned, BatchConfig(out=str(folder)), command=sys.argv, observer=writer
    )
    print(f"{summary.totals(report)} Executed notebooks: {folder}")
    return INTERRUPTED if report.interrupted_by else 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(exit_code_of(main, error_prefix="error", interrupted="interrupted"))

"""Write down what came out of a `gallery run`, for the repository.

    .venv/bin/gallery run --profile quick --out runs/all
    python3 benchmarks/gallery.py runs/all --out benchmarks/results/MACHINE/gallery.json

The index and the notebooks take from the file how long each notebook takes. It keeps what it has of
other notebooks. `gallery compare` compares two such files. Beside each figure stands a digest of
the code that it was measured with, so that the figure can be marked once the code has changed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import figures_file

from gallery_lib.notebooks.batch.record import read_report


def main() -> int:
    """Write the file, and return 1 when a notebook did not pass."""
    parser = figures_file.parser(__doc__, required=True)
    parser.add_argument("batch", type=Path, help="folder of `gallery run`")
    arguments = parser.parse_args()
    report = read_report(arguments.batch)
    notebooks = figures_file.earlier(arguments.out, "notebooks") or {}
    for name, record in report.notebooks.items():
        if record.status != "not run":
            problem = None if record.status == "passed" else f"{record.status}: {record.reason}"
            notebooks[name] = {
                "seconds": record.seconds,
                "problem": problem,
                "comparisons": record.comparisons,
                "date": (record.date or "")[:10],
            }
    notebooks = dict(sorted(notebooks.items()))
    table = [["notebook", "minutes", "speed-ups"]]
    for name, one in notebooks.items():
        found = [
            f"{c['processes']} process(es): "
            f"{figures_file.ratio_text(c['speedup']) if c['speedup'] else c['verdict']}"
            for c in one["comparisons"]
        ]
        minutes = one["problem"] or f"{one['seconds'] / 60:.1f}"
        table.append([name, minutes, "; ".join(found) or "–"])
    profile = {"profile": report.options["profile"]} if report.options.get("profile") else {}
    values = {
        "command": re.sub(r" --out \S+", "", report.command),  # a path of the machine
        "date": report.began[:10],
        "parameters": profile,
        "notebooks": notebooks,
    }
    figures_file.write(arguments.out, values, "The notebooks", table)
    figures_file.show(table)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))

"""Options of the benchmarks that go through the tasks: `--only` and `--out`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from figures_file import out_file

from gallery_lib import tasks


def add_task_option(parser: argparse.ArgumentParser, verb: str, default: Sequence[str]) -> None:
    """Add `--only TASK…`, whose help says that the benchmark will `verb` these tasks."""
    parser.add_argument(
        "--only",
        nargs="+",
        choices=tasks.names(),
        default=default,
        metavar="TASK",
        help=f"tasks to {verb}; `gallery list` names them (default: all)",
    )


def add_out_of_tasks(parser: argparse.ArgumentParser) -> None:
    """Add `--out FILE`, the file of figures that are kept task by task (`measured_before`)."""
    parser.add_argument(
        "--out",
        type=out_file,
        help="JSON file for the figures; it keeps what it has of other tasks",
    )

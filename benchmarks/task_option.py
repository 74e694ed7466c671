"""Option `--only` of the benchmarks that go through the tasks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

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

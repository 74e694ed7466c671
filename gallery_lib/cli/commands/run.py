"""Command `gallery run`: run notebooks headless."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gallery_lib.config import BatchConfig
from gallery_lib.config.command_line import CommandLine
from gallery_lib.console.exit_code import INTERRUPTED
from gallery_lib.system import paths


def _run_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="notebooks of the gallery, or paths of others (default: all)",
    )
    parser.add_argument(
        "-p",
        nargs=2,
        action="append",
        default=[],
        metavar=("PARAMETER", "VALUE"),
        dest="given",
        help="a parameter, for the notebooks that have it; may be repeated",
    )


LINE = CommandLine(
    "gallery run",
    "Run notebooks headless and say which of them really ran. Exit code 0: all passed; "
    "1: not all; 130: interrupted.",
    (BatchConfig,),
    _run_operands,
)


def main(arguments: Sequence[str]) -> int:
    """Run the command with these words behind it, and return the exit code."""
    config, namespace = LINE.parse(arguments)
    paths.check_resume(config.out, resume=config.resume, work="batch")
    from gallery_lib.notebooks.batch import plan

    planned = plan.plan(namespace.names, config.profile, dict(namespace.given))
    from gallery_lib.notebooks.batch import reports, schedule

    folder, report = schedule.run(planned, config, command=["gallery", "run", *arguments])
    print(reports.text(report, folder))
    if len(planned) > 1:
        print(reports.named(folder))
    if report.interrupted_by:
        return INTERRUPTED
    return 0 if report.passed else 1

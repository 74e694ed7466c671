"""Command `gallery doctor`: what this machine offers, and where the time of a step went."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gallery_lib.config.command_line import CommandLine


def _doctor_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="*",
        metavar="RUN",
        help="a run, a comparison or a notebook's folder; and one on several processes",
    )


LINE = CommandLine(
    "gallery doctor",
    "What this machine offers; where a run's step went; why several processes are slower.",
    operands=_doctor_operands,
)


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words behind it."""
    (namespace,) = LINE.parse(arguments)
    from gallery_lib.report.doctor.text import text

    print(text(namespace.folder))

"""Command `gallery pack`: write one task as an archive."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.config.command_line import CommandLine
from gallery_lib.console.signals import importing


def _pack_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="a name from `gallery list`")
    parser.add_argument(
        "--out",
        metavar="FILE.tar.gz",
        help="the archive (default: gallery-TASK.tar.gz in this folder)",
    )


LINE = CommandLine(
    "gallery pack",
    "Write one task as an archive that runs by itself on another machine.",
    operands=_pack_operands,
)


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words behind it."""
    (namespace,) = LINE.parse(arguments)
    with importing():
        from gallery_lib.notebooks.pack import pack

    print(pack(namespace.task, Path(namespace.out or f"gallery-{namespace.task}.tar.gz")))

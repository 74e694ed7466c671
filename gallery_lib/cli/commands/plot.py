"""Command `gallery plot`: draw a comparison's throughput as a picture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gallery_lib.config.command_line import CommandLine
from gallery_lib.errors import InputError


def _plot_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="COMPARISON", help="the folder of a comparison")
    parser.add_argument("picture", metavar="PICTURE.png", help="the file to write")


LINE = CommandLine(
    "gallery plot", "Draw a comparison's throughput since launch.", operands=_plot_operands
)


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words behind it."""
    (namespace,) = LINE.parse(arguments)
    if not namespace.picture.endswith(".png"):
        raise InputError(f"{namespace.picture} must end with .png.", parameter="picture")
    from gallery_lib.measure.comparison.result import read_comparison
    from gallery_lib.report import plots, style

    chart = plots.throughput(read_comparison(namespace.folder))
    style.save(chart.draw(), namespace.picture)
    print(chart.alternative_text)

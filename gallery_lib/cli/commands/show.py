"""Command `gallery show`: print the tables of what a folder holds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.config.command_line import CommandLine


def _show_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        help="a run, a comparison, a batch, a bench, a roofline, or a folder that holds runs and "
        "comparisons",
    )


LINE = CommandLine(
    "gallery show", "Print the tables of what a folder holds.", operands=_show_operands
)


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words behind it."""
    (namespace,) = LINE.parse(arguments)
    from gallery_lib.measure.profile.roofline.result import FILE as ROOFLINE_FILE
    from gallery_lib.measure.profile.roofline.result import read_roofline
    from gallery_lib.notebooks.batch import record, reports
    from gallery_lib.report import tables

    folder = Path(namespace.folder)
    if benches := [
        file for kind in ("bench", "waterfall") if (file := folder / f"{kind}.json").exists()
    ]:
        from gallery_lib.measure.bench.result import read_bench
        from gallery_lib.report import bench

        print("\n\n".join(bench.text(read_bench(file)) for file in benches))
        return
    if (folder / ROOFLINE_FILE).exists():
        from gallery_lib.report import roofline

        print(roofline.text(read_roofline(folder / ROOFLINE_FILE)))
        return
    print(
        reports.text(record.read_report(folder), folder)
        if (folder / record.REPORT_FILE).exists()
        else tables.folder_text(folder)
    )

"""Command `gallery bench`: measure tasks × variants."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gallery_lib.config import BenchConfig
from gallery_lib.config.command_line import CommandLine

if TYPE_CHECKING:
    from gallery_lib.measure.bench.result import Bench


def _bench_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tasks",
        nargs="*",
        metavar="TASK",
        help="tasks of the gallery, or FILE.py:NAME (default: all)",
    )


LINE = CommandLine(
    "gallery bench",
    "Train tasks eagerly, with torch.compile, with other libraries and with this backend, "
    "in turns.\n"
    "Exit code 0: ours (of a waterfall, every technique) ran with parity in every task; "
    "1: not in all.",
    (BenchConfig,),
    _bench_operands,
)


def main(arguments: Sequence[str]) -> int:
    """Run the command with these words behind it, and return the exit code."""
    config, namespace = LINE.parse(arguments)
    from gallery_lib.console.progress import Progress, busy

    progress = Progress()
    with progress.importing():
        from gallery_lib.measure.bench import bench as measure
        from gallery_lib.report import style
        from gallery_lib.report.bench import chart, complete, markdown, text
    progress.clear()

    def write(folder: Path, bench: Bench) -> None:
        picture = f"{bench.kind}.png"
        with busy("tables and picture"):
            style.save(chart(bench).draw(), folder / picture)
            (folder / f"{bench.kind}.md").write_text(markdown(bench, picture), encoding="utf-8")

    folder, bench = measure.run(
        namespace.tasks, config, command=["gallery", "bench", *arguments], done=write
    )
    print(text(bench))
    print(
        f"results: {folder}/{bench.kind}.json, tables: {bench.kind}.md, picture: {bench.kind}.png"
    )
    return 0 if complete(bench) else 1

"""Command `gallery jobs`: what `gallery submit slurm` has in the queue."""

from __future__ import annotations

from collections.abc import Sequence

from gallery_lib.config.command_line import CommandLine

LINE = CommandLine(
    "gallery jobs",
    "Show your jobs in Slurm's queue that `gallery submit slurm` has put there, with the folder of "
    "each run.",
)


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words behind it."""
    LINE.parse(arguments)
    from gallery_lib.console.table import text_table
    from gallery_lib.submit import slurm

    header = ["job", "state", "name", "time", "limit", "nodes", "where or why", "run"]
    rows = [
        [one.job, one.state, one.name, one.time, one.limit, one.nodes, one.where, one.run_dir]
        for one in slurm.jobs()
    ]
    print(text_table([header, *rows]) if rows else "no job of `gallery submit` is in the queue.")

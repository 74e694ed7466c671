"""Command `gallery list`: name the tasks."""

from __future__ import annotations

from collections.abc import Sequence

from gallery_lib.config.command_line import CommandLine
from gallery_lib.console.signals import importing

LINE = CommandLine("gallery list", "Name the tasks of the gallery.")


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words behind it."""
    LINE.parse(arguments)
    with importing():
        from gallery_lib import tasks

    for name in tasks.names():
        task = tasks.get(name)
        print(f"{name:28} {task.title:28} {task.domain}")

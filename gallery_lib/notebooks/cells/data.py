"""The data of a task's notebook: made or found, and looked at."""

from __future__ import annotations

from typing import Any

from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells.display import display_chart, display_markdown
from gallery_lib.notebooks.cells.task_settings import Settings
from gallery_lib.system import paths


def make_data(settings: Settings) -> None:
    """Make the task's mock data, or find it complete; data of the reader's own are only named.

    It is the command that `prepare.sh` runs, and goes on where it was interrupted.

    Raises:
        InputError: without a checkout, which has the command.
        RunFailed: when the command fails.
    """
    from gallery_lib.launcher.script import run_script

    if settings.train.data_dir:
        display_markdown(f"The data are yours, in `{settings.train.data_dir}`.")
        return
    root = paths.checkout()
    if root is None:
        raise InputError(
            "data_prep/ lies beside the notebooks in a checkout, and gallery_lib is installed "
            "without one here. Give a folder as data_dir.",
            parameter="data_dir",
        )
    run_script(root / "data_prep" / f"{settings.task.data_commands[0]}.py")


def show_data(settings: Settings) -> None:
    """Show how much data there is, and some training images as the model sees them."""
    from gallery_lib import tasks
    from gallery_lib.report import examples

    splits: Any = tasks.data_of(settings.train)
    notices = "".join(f"\n- {line}" for line in splits.notices())
    display_markdown(
        f"{len(splits.train):,} items to train on, {len(splits.held_out):,} held out."
        + (f"\n{notices}" if notices else "")
    )
    if settings.task.data_examples is not None:
        display_chart(examples.chart(settings.task.data_examples(splits)))

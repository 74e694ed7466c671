"""What the benchmarks share: their options, and the file of their figures.

A script imports this module first. It finds the checkout, and the script continues in the
environment that `prepare.sh` made. A file holds the figures, the conditions under which they hold,
and the table that `pages.py` shows of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# A checkout works without being installed.
sys.path.insert(0, str(HERE.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if Path(sys.argv[0]).resolve().parent == HERE:
    run_in_prepared_environment()

from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.console.text import text_table
from gallery_lib.errors import InputError
from gallery_lib.stats import Ratio
from gallery_lib.system import hardware
from gallery_lib.system.files import write_json

RESULTS = HERE / "results"
_LOAD_AVERAGE = os.getloadavg()[0]
"""Load average of the last minute before anything was measured."""


def parser(description: str | None, *, tasks: str = "", required: bool = False) -> Any:
    """Return an argument parser with `--out FILE`.

    With `tasks`, the verb of its help text, it has `--only TASK…` as well.
    """
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--out",
        type=out_file,
        required=required,
        help="JSON file for the figures (default: printed only)",
    )
    if tasks:
        from gallery_lib import tasks as known

        arguments.add_argument(
            "--only",
            nargs="+",
            choices=known.names(),
            default=known.names(),
            metavar="TASK",
            help=f"tasks to {tasks}; `gallery list` names them (default: all)",
        )
    return arguments


def add_numbers(arguments: argparse.ArgumentParser, **options: tuple[int, str]) -> None:
    """Add options that are whole numbers from 1 on; each has a default and a help text."""
    for name, (default, text) in options.items():
        arguments.add_argument(
            f"--{name}", type=_from_1_on, default=default, help=f"{text} (default: {default})"
        )


def _from_1_on(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1 on")
    return int(text)


def out_file(text: str) -> Path:
    """Return the path of a file that may be written, and make its folder: the type of `--out`."""
    path = Path(text)
    reason = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            reason = "its folder may not be written to"
    except OSError as error:
        reason = f"its folder cannot be made: {error.strerror}"
    if reason:
        raise argparse.ArgumentTypeError(f"{path} cannot be written: {reason}. Name another file")
    return path


def conditions() -> dict[str, Any]:
    """Return the conditions under which the figures hold.

    The host's name is left out; paths in the command are relative.
    """
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": "python3 benchmarks/" + shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "environment": hardware.machine_facts(),
        "load_average_before": _LOAD_AVERAGE,
    }


def write(path: Path | None, values: dict[str, Any], heading: str, table: Any) -> None:
    """Write the figures with their conditions, atomically; do nothing without a path.

    The machine's page shows the `table` (rows of text, the header first) under the `heading`.
    `values` may replace conditions of the same name.
    """
    if path is not None:
        shown = {"heading": heading, "table": table}
        write_json(path, {**conditions(), **values, "shown": shown})


def earlier(path: Path | None, key: str) -> Any:
    """Return what an earlier run wrote under `key`, to continue; None where there is no file.

    Raises:
        InputError: for a damaged file.
    """
    if path is None or not path.exists():
        return None
    try:
        return json.loads(path.read_text())[key]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} cannot be continued ({type(error).__name__}: {error}). "
            "Delete it, or name another file.",
            parameter=str(path),
        ) from error


def ratio_text(values: dict[str, float] | None) -> str:
    """Return a ratio of a file with its interval; `–` for none."""
    return str(Ratio(values["ratio"], values["low"], values["high"])) if values else "–"


def sizes_text(sizes: dict[str, Any]) -> str:
    """Return the sizes of a task in words: `batch size 4, image size 64`."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in sizes.items())


def show(table: Sequence[Sequence[str]]) -> None:
    """Print the rows, aligned."""
    print(text_table(table), flush=True)


def exit_code(body: Callable[[], int]) -> int:
    """Return the exit code of `body`; an error or an interrupt is one message.

    `body` measures one thing after another, and writes what it has after each.
    """
    return exit_code_of(
        body,
        error_prefix="error",
        interrupted="interrupted; the file of --out has what was measured before, if anything was",
    )

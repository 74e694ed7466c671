"""File of a benchmark's figures: its place, the conditions written beside the figures, its checks.

The conditions are hardware, versions, command and date.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import InputError
from gallery_lib.system import hardware
from gallery_lib.system.json_files import write_json

if TYPE_CHECKING:
    from gallery_lib.measure.comparison.result import Comparison

RESULTS = Path(__file__).resolve().parent / "results"
_LOAD_AVERAGE = os.getloadavg()[0]
"""Load average of the last minute before anything was measured.

A benchmark imports this module at its start.
"""


def conditions() -> dict[str, Any]:
    """Return the conditions under which the figures hold.

    The host's name is left out; paths in the command are relative.
    """
    environment = hardware.machine_facts()
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": "python3 benchmarks/" + shlex.join(words),
        "environment": environment,
        "load_average_before": _LOAD_AVERAGE,
    }


def comparison_figures(outcome: Comparison) -> dict[str, Any]:
    """Return the figures of a comparison, without folders and without the loss of each step."""
    values = outcome.as_json()
    for results in values["variants"].values():
        results["config"].pop("run_dir")
        results["loss"].pop("curve")
    return values


def results_file(machine: str, name: str) -> Path:
    """Return the path of published figures of a machine: `results/MACHINE/NAME`.

    `page_kinds.py` lists the names.
    """
    return RESULTS / machine / name


def measured_before(path: Path | None, key: str) -> Any:
    """Return what an earlier run wrote under `key`, to continue; None where there is no file.

    Raises:
        InputError: for a damaged file.
    """
    if path is None or not path.exists():
        return None
    try:
        return json.loads(path.read_text())[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} cannot be continued ({type(error).__name__}: {error}). "
            "Delete it, or name another file.",
            parameter=str(path),
        ) from error


def writable(path: Path) -> Path:
    """Return `path` if a file may be written there, and make its folder.

    Call it before anything is measured.

    Raises:
        InputError: where the file may not be written.
    """
    reason = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            reason = "its folder may not be written to"
    except OSError as error:
        reason = f"its folder cannot be made: {error.strerror}"
    if reason:
        raise InputError(
            f"the figures cannot be written to {path}: {reason}. Name another file with --out.",
            parameter="out",
        )
    return path


def out_file(text: str) -> Path:
    """Return a writable path; the argparse type of `--out`."""
    try:
        return writable(Path(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removesuffix(".")) from error


def exit_code(body: Callable[[], int]) -> int:
    """Return the exit code of `body`; an error or an interrupt is one message.

    `body` measures one thing after another, and writes what it has after each.
    """
    return exit_code_of(
        body,
        error_prefix="error",
        interrupted="interrupted; the file of --out has what was measured before, if anything was",
    )


def write_result(path: Path, values: dict[str, Any]) -> None:
    """Write the figures, atomically."""
    write_json(writable(path), values)

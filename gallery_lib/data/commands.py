"""The form that the commands of data_prep/ share: their options, messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gallery_lib.config.options import CommandLine
from gallery_lib.console import exit_code
from gallery_lib.data import mock_folder
from gallery_lib.system import paths


def run(
    description: str, body: Callable[..., object], *classes: type, operands: dict[str, Any]
) -> int:
    """Print what `body` makes of the script's options and operands; return the exit code."""
    script = Path(sys.argv[0])
    line = CommandLine(script.name, description, classes, operands)
    return exit_code.exit_code_of(
        lambda: print(body(*line.parse(sys.argv[1:]))),
        error_prefix=script.stem,
        interrupted=f"{script.stem}: interrupted; run it again to go on",
    )


def check(description: str, summary: Callable[[Any], object], **options: dict[str, Any]) -> int:
    """Check a folder of the reader's own, print the `summary`, and return the exit code.

    Besides the folder and --full, the command takes `options`: names with argparse's arguments.
    """
    operands = {
        "folder": {"type": Path, "help": "the folder that has train/ and val/ in it"},
        **{f"--{name}": arguments for name, arguments in options.items()},
        "--full": {"action": "store_true", "help": "read everything instead of some of it"},
    }
    return run(description, summary, operands=operands)


def make(
    description: str, kind: str, cls: type, generate: Callable[[Path, Any], mock_folder.Made]
) -> int:
    """Make mock data of a spec of type `cls`, whose fields are options; return the exit code.

    `kind` names the folder in the gallery's cache.
    """
    out = {"type": Path, "help": "folder; default: where the gallery looks for these data"}
    return run(
        description,
        lambda spec, given: generate(given.out or paths.data_dir(f"{kind}-small"), spec),
        cls,
        operands={"--out": out},
    )

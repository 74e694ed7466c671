"""The form that the commands of data_prep/ share: their options, messages and exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gallery_lib.config.command_line import Parser
from gallery_lib.config.options import check_value
from gallery_lib.console import exit_code
from gallery_lib.data import mock_folder
from gallery_lib.system import paths


def run(parser: Parser, body: Callable[[argparse.Namespace], object]) -> int:
    """Print what `body` makes of the command's options; return the exit code."""
    name = Path(sys.argv[0]).stem
    return exit_code.exit_code_of(
        lambda: print(body(parser.parse(sys.argv[1:]))),
        error_prefix=name,
        interrupted=f"{name}: interrupted; run it again to go on",
    )


def check(
    description: str,
    summary: Callable[[argparse.Namespace], object],
    *options: tuple[str, dict[str, Any]],
) -> int:
    """Check a folder of the reader's own, print the `summary`, and return the exit code.

    Besides the folder and --full, the command takes `options`: names with argparse's arguments.
    """
    parser = Parser(None, description)
    parser.add_argument("folder", type=Path, help="the folder that has train/ and val/ in it")
    for name, arguments in options:
        parser.add_argument(name, **arguments)
    parser.add_argument("--full", action="store_true", help="read everything instead of some of it")
    return run(parser, summary)


def make(
    description: str, kind: str, cls: type[Any], generate: Callable[..., mock_folder.Made]
) -> int:
    """Make mock data of a spec of type `cls`, whose fields are options; return the exit code.

    `kind` names the folder in the gallery's cache.
    """
    parser = Parser(None, description)
    parser.add_argument(
        "--out", type=Path, help="folder; default: where the gallery looks for these data"
    )
    parser.add_options(cls)

    def body(given: argparse.Namespace) -> object:
        names = {f.name for f in dataclasses.fields(cls)} & vars(given).keys()
        values = {name: check_value(cls, name, getattr(given, name)) for name in names}
        return generate(given.out or paths.data_dir(f"{kind}-small"), cls(**values))

    return run(parser, body)

"""The form that the commands of data_prep/ share: their options, messages and exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gallery_lib.console import exit_code
from gallery_lib.data import mock_folder
from gallery_lib.errors import RunFailed
from gallery_lib.system import paths


def run(body: Callable[[], object], interrupted: str = "interrupted") -> int:
    """Print what `body` returns and return the exit code; messages begin with the script's name."""
    name = Path(sys.argv[0]).stem
    return exit_code.exit_code_of(
        lambda: print(body()), error_prefix=name, interrupted=f"{name}: {interrupted}"
    )


def check(
    description: str,
    summary: Callable[[argparse.Namespace], object],
    *options: tuple[str, dict[str, Any]],
) -> int:
    """Check a folder of the reader's own, print the `summary`, and return the exit code.

    Besides the folder and --full, the command takes `options`: names with argparse's arguments.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, help="the folder that has train/ and val/ in it")
    for name, arguments in options:
        parser.add_argument(name, **arguments)
    parser.add_argument("--full", action="store_true", help="read everything instead of some of it")
    args = parser.parse_args()
    return run(lambda: summary(args))


def make(
    description: str,
    kind: str,
    presets: Mapping[str, Any],
    texts: Mapping[str, str],
    generate: Callable[..., mock_folder.Made],
) -> int:
    """Make mock data of a spec whose fields are options, and return the exit code.

    `kind` names the folder in the gallery's cache. `presets` are specs by name, `small` being the
    default. Data with several may take hours, so the command also takes --workers and --verify.
    `texts` has the help for each field of the spec that is an option.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--out", type=Path, help="folder; default: where the gallery looks for these data"
    )
    for name, text in texts.items():
        default = "the preset's" if len(presets) > 1 else getattr(presets["small"], name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, help=f"{text} (default: {default})"
        )
    if len(presets) > 1:
        parser.add_argument(
            "--preset", choices=list(presets), help="sizes, all together (default: small)"
        )
        parser.add_argument("--workers", type=int, help="processes (default: one per core)")
        parser.add_argument(
            "--verify",
            action="store_true",
            help="read everything and report what is missing or changed; makes nothing",
        )
    parser.set_defaults(preset="small", workers=None, verify=False)
    args = parser.parse_args()
    root = args.out or paths.data_dir(f"{kind}-small" if args.preset == "small" else args.preset)

    def body() -> object:
        if args.verify:
            return _verified(root)
        values = {name: getattr(args, name) for name in texts}
        given = {name: value for name, value in values.items() if value is not None}
        spec = dataclasses.replace(presets[args.preset], **given)
        workers = {} if args.workers is None else {"workers": args.workers}
        return generate(root, spec, **workers)

    return run(body, f"interrupted; run it again to go on. Folder: {root}")


def _verified(root: Path) -> str:
    problems = mock_folder.verify(root)
    if problems:
        print("\n".join(problems))
        raise RunFailed(
            f"{len(problems)} problems in {root}. Incomplete data go on when they are made again; "
            "move others away, and make them again."
        )
    return f"{root}: every file is as it was made"

"""Options of `prepare.sh`. Their texts are in `prepare.sh`, which shows them without any Python."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gallery_lib.errors import InputError, closest

DATA_PRESETS = ("small", "imagenet-sized")
NEEDED_VALUES = {
    "--run": "the name of a notebook.",
    "-p": "a name and a value: -p batch_size 32",
    "--data": f"one of: {' '.join(DATA_PRESETS)}",
}
"""What has to follow an option, for a message."""


@dataclass(frozen=True)
class Options:
    """What the words behind `prepare.sh` ask for.

    `notebook` is the name behind `--run`, or None. `parameters` are (name, value).
    """

    notebook: str | None
    parameters: tuple[tuple[str, str], ...]
    lab: bool
    test: bool
    into_current: bool
    data: str
    lock: bool


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--run", action="append", default=[])
    parser.add_argument("-p", nargs=2, action="append", default=[])
    parser.add_argument("--lab", action="store_true")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--into-current", action="store_true")
    parser.add_argument("--data", default=DATA_PRESETS[0])
    parser.add_argument("--lock", action="store_true")
    return parser


def names() -> list[str]:
    """Return every option of `prepare.sh`."""
    return [name for action in _parser()._actions for name in action.option_strings] + ["--help"]


def parse(words: Sequence[str]) -> Options:
    """Return the options that `words` give.

    Raises:
        InputError: for an unknown option, a missing or wrong value, and options that do not go
            together.
    """
    try:
        namespace, unknown = _parser().parse_known_args(words)
    except argparse.ArgumentError as error:
        name = error.argument_name or ""
        if name in NEEDED_VALUES:
            raise InputError(
                f"{name} needs {NEEDED_VALUES[name]}", parameter=name.lstrip("-")
            ) from None
        raise InputError(f"{name} takes no value.", parameter=name.lstrip("-")) from None
    if unknown:
        raise InputError(
            f"{unknown[0]}: no such option.{suggestion(unknown[0], names())}\n"
            f"    Options: {' '.join(names())}",
            parameter=unknown[0].lstrip("-"),
        )
    if "" in namespace.run:
        raise InputError(f"--run needs {NEEDED_VALUES['--run']}", parameter="run")
    if len(namespace.run) > 1:
        raise InputError("--run was given twice; it runs one notebook.", parameter="run")
    if namespace.data not in DATA_PRESETS:
        raise InputError(
            f"--data {namespace.data}: no such preset.{suggestion(namespace.data, DATA_PRESETS)}\n"
            f"    There are: {' '.join(DATA_PRESETS)}",
            parameter="data",
        )
    if namespace.lab and namespace.test:
        raise InputError(
            "--lab and --test do not go together: --test ends with the tests.", parameter="test"
        )
    if namespace.p and not namespace.run:
        raise InputError(
            "-p gives a parameter to the notebook of --run, which is missing.", parameter="run"
        )
    return Options(
        notebook=namespace.run[0] if namespace.run else None,
        parameters=tuple((name, value) for name, value in namespace.p),
        lab=namespace.lab,
        test=namespace.test,
        into_current=namespace.into_current,
        data=namespace.data,
        lock=namespace.lock,
    )


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean X?" for the closest of `known`, or "" when nothing is close."""
    return f" Did you mean {match}?" if (match := closest(word, known)) else ""

"""Shell script that completes the `gallery` command in bash or zsh: commands, options, operands.

shtab makes it from the same declarations as the command lines themselves. The shell reads the
script once, so the tab key starts no Python. After a change of the options the script has to be
made anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import shtab

from gallery_lib.config.command_line import CommandLine
from gallery_lib.config.options import options_of

_FOLDERS = ("folder", "out", "run_dir", "data_dir", "init_from")
_FILES = ("batches", "picture", "pretrained")


def _complete(
    parser: argparse.ArgumentParser, line: CommandLine, known: Mapping[str, Sequence[str]]
) -> None:
    """Declare the values that each argument accepts, and offer one spelling of it."""
    if line.actions:
        branches = parser.add_subparsers()
        for name, action_line in line.actions.items():
            help_text = action_line.description.splitlines()[0].rstrip(".")
            _complete(
                branches.add_parser(
                    name, help=help_text, parents=[action_line.parser()], add_help=False
                ),
                action_line,
                known,
            )
        return
    options = {
        name: declared.choices for cls in line.classes for name, declared in options_of(cls).items()
    }
    for action in parser._actions:
        if values := known.get(action.dest) or options.get(action.dest):
            action.choices = values
        elif action.dest in (*_FOLDERS, *_FILES):
            action.complete = shtab.DIRECTORY if action.dest in _FOLDERS else shtab.FILE  # type: ignore[attr-defined]
        action.option_strings = [word for word in action.option_strings if "_" not in word]


def script(
    shell: str, commands: Mapping[str, tuple[str, CommandLine]], known: Mapping[str, Sequence[str]]
) -> str:
    """Return the script for `bash` or `zsh`.

    Args:
        shell: `bash` or `zsh`.
        commands: a sentence about each command, and its command line.
        known: words that an argument (`names`, say) accepts beside those that its option declares.
    """
    root = argparse.ArgumentParser(prog="gallery")
    branches = root.add_subparsers()
    for name, (sentence, line) in commands.items():
        parents = [] if line.actions else [line.parser()]
        _complete(
            branches.add_parser(name, help=sentence, parents=parents, add_help=bool(line.actions)),
            line,
            known,
        )
    return shtab.complete(root, shell)

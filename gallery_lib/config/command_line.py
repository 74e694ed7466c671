"""Command lines of declared options: the parser, its errors, and the words of given options.

LINE = CommandLine("gallery run", "Run notebooks headless.", (BatchConfig,))
(config,) = LINE.parse(["--out", "night"])
words_of(config)  # ["--out=night"]
"""

from __future__ import annotations

import argparse
import re
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gallery_lib.config.options import default_of, from_mapping, options_of
from gallery_lib.errors import InputError, did_you_mean

_UNKNOWN = re.compile(r"unrecognized arguments: ([^\s=]+)")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        """Raise InputError, with the known option closest to a misspelt one."""
        known = [name for action in self._actions for name in action.option_strings]
        if unknown := _UNKNOWN.match(message):
            message = f"unknown option `{unknown[1]}`.{did_you_mean(unknown[1], known)}"
        stop = "" if message.endswith((".", "?")) else "."
        raise InputError(f"{message}{stop} See {self.prog} --help.")


@dataclass(frozen=True)
class CommandLine:
    """Declaration of a command line: its options and operands.

    `operands` are arguments that are no option of a class (names of files, say), with what
    argparse's `add_argument` takes. `without` has options of the classes that the command does not
    offer; they have their defaults. `behind_dashes` names the words behind `--`, which are taken as
    they are.
    """

    prog: str
    description: str
    classes: tuple[type, ...] = ()
    operands: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    without: Collection[str] = ()
    behind_dashes: str = ""

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser, with a group for each class. Only `--help` ends the process.

        The first line of the docstring of a class names its group.
        """
        parser = _Parser(
            self.prog,
            f"{self.prog} [options] -- {self.behind_dashes}" if self.behind_dashes else None,
            self.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for name, declared in self.operands.items():
            parser.add_argument(name, **declared)
        for cls in self.classes:
            title = (cls.__doc__ or cls.__name__).splitlines()[0].rstrip(".")
            group = parser.add_argument_group(title)
            for name, option in options_of(cls).items():
                if name in self.without:
                    continue
                takes: dict[str, Any] = {"metavar": name.upper()}
                if option.type is bool:
                    takes = {"action": argparse.BooleanOptionalAction}
                text = option.help.replace("%", "%%")
                text += "" if option.default is None else f" (default: {option.default})"
                flag = f"--{name.replace('_', '-')}"
                group.add_argument(flag, default=argparse.SUPPRESS, help=text, **takes)
        return parser

    def parse(self, arguments: Sequence[str]) -> list[Any]:
        """Return an instance of each class, then the operands, then the words behind `--`.

        Options have dashes, or underscores instead, and operands stand anywhere among them. The
        operands are a namespace, and only returned where the command declares operands. The words
        behind `--` are only returned where it declares `behind_dashes`. `--help` prints every
        option with its default, and ends with exit code 0.

        Raises:
            InputError: on anything wrong.
        """
        words = list(arguments)
        end = words.index("--") if self.behind_dashes and "--" in words else len(words)
        namespace = self.parser().parse_intermixed_args(
            [re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), one) for one in words[:end]]
        )
        values = vars(namespace)
        instances: list[Any] = [
            from_mapping(cls, {f.name: values[f.name] for f in fields(cls) if f.name in values})
            for cls in self.classes
        ]
        instances += [namespace] if self.operands else []
        return [*instances, words[end + 1 :]] if self.behind_dashes else instances


def words_of(*configs: Any) -> list[str]:
    """Return the shortest words that `CommandLine.parse` turns back into `configs`.

    Only options that differ from their defaults are written.
    """
    words = []
    for config in configs:
        for f in fields(config):
            value = getattr(config, f.name)
            if value == default_of(f):
                continue
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{f.name.replace('_', '-')}")
            else:
                words.append(f"--{f.name}={value}")
    return words

"""Command lines of declared options: the parser, its errors, and the words of given options.

LINE = CommandLine("gallery run", "Run notebooks headless.", (BatchConfig,))
(config,) = LINE.parse(["--out", "night"])
words_of(config)  # ["--out=night"]
"""

from __future__ import annotations

import argparse
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gallery_lib.config.options import default_of, from_mapping, options_of
from gallery_lib.errors import InputError, closest


def add_arguments(parser: argparse.ArgumentParser, cls: type, *, skip: Sequence[str] = ()) -> None:
    """Add one `--option` per field of `cls`, with underscores, as torchrun has them, or dashes.

    Args:
        parser: the parser that gets a group of arguments, named by the first line of the docstring
            of `cls`.
        cls: the options class.
        skip: names of fields that are left out.
    """
    group = parser.add_argument_group((cls.__doc__ or cls.__name__).splitlines()[0].rstrip("."))
    for name, declared in options_of(cls).items():
        if name in skip:
            continue
        default = declared.default
        default_text = "" if default is None else f" (default: {default})"
        help_text = declared.help.replace("%", "%%") + declared.bracket + default_text
        flags = list(dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]))
        if declared.type is bool and not declared.optional:
            group.add_argument(
                *flags, action="store_true", default=argparse.SUPPRESS, dest=name, help=help_text
            )
            negated = list(dict.fromkeys([f"--no_{name}", f"--no-{name.replace('_', '-')}"]))
            group.add_argument(
                *negated,
                action="store_false",
                default=argparse.SUPPRESS,
                dest=name,
                help=argparse.SUPPRESS if not default else f"Switch {name} off.",
            )
        else:
            group.add_argument(
                *flags, default=argparse.SUPPRESS, dest=name, metavar=name.upper(), help=help_text
            )


def _field_name(word: str) -> str:
    """Return the name of an option as its class has it: `batch_size` for `--batch-size=4`."""
    return word.split("=")[0].lstrip("-").replace("-", "_")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise InputError(f"{message}. See {self.prog} --help.", parameter=self._refused(message))

    def _refused(self, message: str) -> str | None:
        """Return the name of the argument that argparse's error is about."""
        error = sys.exc_info()[1]
        if isinstance(error, argparse.ArgumentError):
            spelling = error.argument_name or ""
        else:
            spelling = message.rpartition("arguments are required: ")[2].split(", ")[0]
        names = {
            str(name): action.dest
            for action in self._actions
            for name in (*action.option_strings, action.metavar, action.dest)
        }
        return names.get(spelling.split("/")[0])


@dataclass(frozen=True)
class CommandLine:
    """Declaration of a command line: its options, operands and actions.

    `operands` declares arguments that are no option of a class (names of files, say). `fixed` holds
    options that the command does not offer, each with the reason; they have their defaults.
    `behind_dashes` names the words behind `--`, which are taken as they are. A command with
    `actions` takes one of these words first, and then the arguments of that action; it has no other
    options.
    """

    prog: str
    description: str
    classes: tuple[type, ...] = ()
    operands: Callable[[argparse.ArgumentParser], None] | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)
    behind_dashes: str = ""
    actions: Mapping[str, CommandLine] = field(default_factory=dict)

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser, which raises InputError instead of ending the process.

        Only `--help` ends the process.
        """
        parser = _Parser(
            prog=self.prog,
            description=self.description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if self.actions:
            parser.add_argument(
                "action",
                choices=self.actions,
                metavar="ACTION",
                help=f"{', '.join(self.actions)}; each has its own --help",
            )
        if self.operands is not None:
            self.operands(parser)
        if self.behind_dashes:
            words = [str(action.metavar) for action in parser._actions if not action.option_strings]
            parser.usage = " ".join(["%(prog)s", *words, f"[options] -- {self.behind_dashes}"])
        for cls in self.classes:
            add_arguments(parser, cls, skip=tuple(self.fixed))
        return parser

    def shown_options(self) -> list[argparse.Action]:
        """Return the options and operands that the help lists, without suppressed ones."""
        return [action for action in self.parser()._actions if action.help is not argparse.SUPPRESS]

    def parse(self, arguments: Sequence[str]) -> list[Any]:
        """Return an instance of each class, then the operands, then the words behind `--`.

        The operands are a namespace, and only returned where the command declares operands. The
        words behind `--` are only returned where it declares `behind_dashes`. `--help` prints every
        option with its default and unit, and ends with exit code 0.

        Raises:
            InputError: on anything wrong.
        """
        if self.actions and arguments and arguments[0] in self.actions:
            return self.actions[arguments[0]].parse(arguments[1:])
        words = list(arguments)
        end = words.index("--") if self.behind_dashes and "--" in words else len(words)
        namespace, unknown = self.parser().parse_known_intermixed_args(words[:end])
        if unknown:
            raise self._unknown(unknown[0])
        values = vars(namespace)
        instances: list[Any] = [
            from_mapping(cls, {f.name: values[f.name] for f in fields(cls) if f.name in values})
            for cls in self.classes
        ]
        instances += [namespace] if self.operands is not None or self.actions else []
        return [*instances, words[end + 1 :]] if self.behind_dashes else instances

    def _unknown(self, word: str) -> InputError:
        """Return the error for a word that the command does not know."""
        name = _field_name(word)
        if reason := self.fixed.get(name):
            message = f"{self.prog} has no `{word.split('=')[0]}`: {reason}."
        else:
            message = f"unknown option `{word}`.{self._suggestion(word)}"
        return InputError(f"{message} See {self.prog} --help.", parameter=name)

    def _suggestion(self, word: str) -> str:
        """Return "Did you mean" with the closest option, or "" when none is close.

        The suggestion has dashes or underscores as in `word`.
        """
        typed = word.split("=")[0].lstrip("-")
        other = "-" if "_" in typed else "_"
        spellings = [
            spelling
            for action in self.shown_options()
            for spelling in action.option_strings
            if spelling.startswith("--")
        ]
        known = {
            spelling.lstrip("-"): spelling for spelling in spellings if other not in spelling[2:]
        }
        return f" Did you mean `{known[close]}`?" if (close := closest(typed, known)) else ""


def parse_command_line(
    arguments: Sequence[str], *classes: type, prog: str, description: str
) -> list[Any]:
    """Return an instance of each options class from command-line words.

    Raises:
        InputError: on anything wrong.
    """
    return CommandLine(prog, description, classes).parse(arguments)


def words_of(*configs: Any) -> list[str]:
    """Return the shortest words that `parse_command_line` turns back into `configs`.

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

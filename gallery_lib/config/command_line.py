"""Command lines of declared options: the parser, its errors, and the words of given options.

LINE = CommandLine("gallery run", "Run notebooks headless.", (BatchConfig,))
(config,) = LINE.parse(["--out", "night"])
words_of(config)  # ["--out=night"]
"""

from __future__ import annotations

import argparse
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gallery_lib.config.options import default_of, from_mapping, options_of
from gallery_lib.errors import InputError, closest


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        """Raise InputError with the name of the argument that argparse's error is about."""
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
        name = names.get(spelling.split("/")[0])
        raise InputError(f"{message}. See {self.prog} --help.", parameter=name)

    def add_options(self, cls: type, skip: Mapping[str, str]) -> None:
        """Add an `--option` per field of `cls`, with underscores, as torchrun has them, or dashes.

        They are a group, named by the first line of the docstring of `cls`.
        """
        group = self.add_argument_group((cls.__doc__ or cls.__name__).splitlines()[0].rstrip("."))
        for name, declared in options_of(cls).items():
            if name in skip:
                continue
            default = declared.default
            text = declared.help.replace("%", "%%") + declared.bracket
            text += "" if default is None else f" (default: {default})"
            common: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": name}
            if declared.type is not bool or declared.optional:
                group.add_argument(*_flags(name), metavar=name.upper(), help=text, **common)
                continue
            off = f"Switch {name} off." if default else argparse.SUPPRESS
            group.add_argument(*_flags(name), action="store_true", help=text, **common)
            group.add_argument(*_flags(f"no_{name}"), action="store_false", help=off, **common)


def _flags(name: str) -> list[str]:
    return list(dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]))


@dataclass(frozen=True)
class CommandLine:
    """Declaration of a command line: its options, operands and actions.

    `operands` are arguments that are no option of a class (names of files, say), with what
    argparse's `add_argument` takes. `fixed` holds options that the command does not offer, each
    with the reason; they have their defaults. `behind_dashes` names the words behind `--`, which
    are taken as they are. A command with `actions` takes one of these words first, and then the
    arguments of that action; it has no other options.
    """

    prog: str
    description: str
    classes: tuple[type, ...] = ()
    operands: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
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
            text = f"{', '.join(self.actions)}; each has its own --help"
            parser.add_argument("action", choices=self.actions, metavar="ACTION", help=text)
        for name, declared in self.operands.items():
            parser.add_argument(name, **declared)
        if self.behind_dashes:
            parser.usage = f"%(prog)s [options] -- {self.behind_dashes}"
        for cls in self.classes:
            parser.add_options(cls, self.fixed)
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
        instances += [namespace] if self.operands or self.actions else []
        return [*instances, words[end + 1 :]] if self.behind_dashes else instances

    def _unknown(self, word: str) -> InputError:
        """Return the error for a word that the command does not know.

        A suggestion has dashes or underscores as in `word`.
        """
        spelling = word.split("=")[0]
        typed = spelling.lstrip("-")
        name = typed.replace("-", "_")
        if reason := self.fixed.get(name):
            message = f"{self.prog} has no `{spelling}`: {reason}."
        else:
            known = {
                option.lstrip("-"): option
                for action in self.shown_options()
                for option in action.option_strings
                if option.startswith("--") and ("-" if "_" in typed else "_") not in option[2:]
            }
            near = closest(typed, known)
            suggestion = f" Did you mean `{known[near]}`?" if near else ""
            message = f"unknown option `{word}`.{suggestion}"
        return InputError(f"{message} See {self.prog} --help.", parameter=name)


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

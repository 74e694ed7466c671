"""Options: how one is declared, how its values are checked, and command lines of them.

An options class is a dataclass. Text below a field says what the option means. Whole numbers are
from 1 to 1e9, others from 0, unless `option(...)` says otherwise. A wrong value raises InputError,
which names the option, the value, and what it must be.

    @dataclass(frozen=True)
    class Sizes:
        batch_size: int = 32
        \"\"\"Samples per step.\"\"\"
        workers: int = option(1, minimum=0)
        \"\"\"Processes that load data.\"\"\"

    from_mapping(Sizes, {"batch_size": "64"})  # Sizes(batch_size=64, workers=1)
    LINE = CommandLine("sizes", "Show sizes.", (Sizes,))
    (sizes,) = LINE.parse(["--batch-size", "64"])
    words_of(sizes)  # ["--batch-size=64"]
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from gallery_lib.errors import InputError, did_you_mean

T = TypeVar("T")
GREATEST = 1e9  # of a number; a larger one is a slip: the run would lack memory or never end
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_NUMBER = re.compile(r"[-+.e\d]+", re.ASCII | re.IGNORECASE)


def option(default: Any, **bounds: float) -> Any:
    """Return a dataclass field for a number with these bounds: `minimum`, `maximum`.

    A default of None means "decided later"; the option's text says by what.
    """
    return dataclasses.field(default=default, metadata=bounds)


@dataclass(frozen=True)
class Option:
    """Declaration of one option, as its class has it."""

    name: str
    type: Any  # without None: bool, int, float, str, a Literal, a container or an options class
    optional: bool  # whether None is a value
    default: Any
    of: type  # the class that declares it
    minimum: float
    maximum: float = GREATEST

    @property
    def help(self) -> str:
        """Return what the option means."""
        return _texts(self.of)[self.name]

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the values that the option offers; none where it is not a choice."""
        return typing.get_args(self.type) if typing.get_origin(self.type) is Literal else ()

    @property
    def must_be(self) -> str:
        """Return what the option must be: `a whole number between 1 and 9`."""
        if self.choices:
            return " or ".join(self.choices)
        kind = str(_KINDS.get(self.type) or getattr(self.type, "__name__", self.type))
        is_number = self.type in (int, float)
        return f"{kind} between {self.minimum:.10g} and {self.maximum:.10g}" if is_number else kind

    def convert(self, value: Any) -> Any:
        """Return `value` as the option's type, which text may spell; ValueError for another."""
        if self.optional and (value is None or value in ("None", "none")):
            return None
        if self.choices or self.type is str:
            if not isinstance(value, str) or not value.strip() or "\0" in value:
                raise ValueError
            if self.choices and value not in self.choices:
                raise ValueError
            return value
        if self.type is bool:
            return _TRUTH[value.lower()] if isinstance(value, str) else self._checked(value)
        if self.type not in (int, float):
            return self._checked(value)
        is_text = isinstance(value, str)
        if isinstance(value, bool) or (is_text and not _NUMBER.fullmatch(value)):
            raise ValueError
        number = self.type(value)
        if not (is_text or number == value) or not self.minimum <= number <= self.maximum:
            raise ValueError
        if not number and is_text and re.match("[-+.0]*[1-9]", value):  # it is too small: 1e-400
            raise ValueError
        return number

    def _checked(self, value: Any) -> Any:
        if not isinstance(value, typing.get_origin(self.type) or self.type):
            raise ValueError
        return value


@functools.cache
def _texts(cls: type) -> dict[str, str]:
    """Return the text below each field of a class, by the field's name; those of its bases too."""
    if cls is object:
        return {}
    (declared,) = (
        one
        for one in ast.parse(Path(inspect.getfile(cls)).read_text(encoding="utf-8")).body
        if isinstance(one, ast.ClassDef) and one.name == cls.__name__
    )
    return {name: text for base in cls.__bases__ for name, text in _texts(base).items()} | {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in zip(declared.body, declared.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


@functools.cache
def options_of(cls: type) -> Mapping[str, Option]:
    """Return the options that `cls` declares, by name."""
    hints = typing.get_type_hints(cls)
    declared = {}
    for f in fields(cls):
        hint = inner = hints[f.name]
        if typing.get_origin(hint) in (Union, types.UnionType):
            (inner,) = (one for one in typing.get_args(hint) if one is not type(None))
        about = (f.name, inner, inner is not hint, default_of(f), cls)
        declared[f.name] = Option(*about, **{"minimum": int(inner is int), **f.metadata})
    return declared


def default_of(f: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, also where a factory builds it."""
    return f.default_factory() if f.default_factory is not MISSING else f.default


def check_value(cls: type, name: str, value: Any) -> Any:
    """Return `value` converted to the type of option `name`; InputError where it does not fit."""
    declared = options_of(cls)[name]
    try:
        return declared.convert(value)
    except (ValueError, TypeError, OverflowError, KeyError):
        message = f"{name}={value!r} must be {declared.must_be}."
        raise InputError(message, parameter=name) from None


def from_mapping(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return an instance of the options class `cls` from plain values, names and values checked."""
    known: Mapping[str, Option] = options_of(cls)  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise InputError(
                f"unknown parameter `{name}`.{did_you_mean(name, known)} "
                f"Known: {', '.join(known)}.",
                parameter=name,
            )
    return cls(**{name: check_value(cls, name, value) for name, value in values.items()})


def checked(config: T) -> T:
    """Return `config` with every value checked, in its parts too; for options set in Python."""
    cls: Any = type(config)
    values = {name: check_value(cls, name, getattr(config, name)) for name in options_of(cls)}
    parts = {name: checked(part) for name, part in values.items() if dataclasses.is_dataclass(part)}
    return cls(**values | parts)


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
    they are. `script` names a script behind the options with all that follows it, or the words
    behind `--`.
    """

    prog: str
    description: str
    classes: tuple[type, ...] = ()
    operands: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    without: Collection[str] = ()
    behind_dashes: str = ""
    script: str = ""

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser, with a group for each class, named by its docstring's first line."""
        parser = _Parser(
            self.prog,
            f"{self.prog} [options] {self.script or '-- ' + self.behind_dashes}"
            if self.script or self.behind_dashes
            else None,
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
        operands are a namespace. They, and the words behind `--`, are only returned where the
        command declares them. `--help` prints every option with its default, and ends with exit
        code 0. Anything wrong is an InputError.
        """
        words = list(arguments)
        behind = self.behind_dashes or self.script
        end = words.index("--") if behind and "--" in words else len(words)
        start = end + 1
        if self.script:
            endings = (".py", ".ipynb")
            scripts = [i for i, w in enumerate(words) if w.endswith(endings) and w[0] != "-"]
            if scripts and scripts[0] < end:
                end = start = scripts[0]
        namespace = self.parser().parse_intermixed_args(
            [re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), one) for one in words[:end]]
        )
        values = vars(namespace)
        instances: list[Any] = [
            from_mapping(cls, {f.name: values[f.name] for f in fields(cls) if f.name in values})
            for cls in self.classes
        ]
        instances += [namespace] if self.operands else []
        return [*instances, words[start:]] if behind else instances


def words_of(*configs: Any) -> list[str]:
    """Return the shortest words that `CommandLine.parse` turns back into `configs`."""
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

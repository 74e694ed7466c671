"""Options: how one is declared, checked, and made a command line, a notebook cell or a table.

An options class is a dataclass whose fields are made by `option(...)` (config/ holds all of them).
Bad values raise InputError with the option's name, the value, and what the value must be. The
module needs no torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeVar, Union

from gallery_lib.config import durations
from gallery_lib.errors import InputError, closest, did_you_mean

T = TypeVar("T")
_SECONDS = "seconds"
_GREATEST: Mapping[str, float] = {
    "": 1e6,
    "batches": 10_000,
    "cores": 4096,
    "epochs": 1_000_000,
    "hosts": 4096,
    "images": 100_000_000,
    "notebooks": 1024,
    "passes": 10_000,
    "pixels": 16_384,
    "processes": 256,
    "samples": 1 << 20,
    "seconds": 30 * 86_400,
    "seeds": 1000,
    "steps": 1_000_000_000,
    "threads": 1024,
    "times": 1000,
    "tokens or frames": 1 << 20,
    "turns": 10_000,
    "units": 65_536,
    "variants": 64,
    "GiB": 65_536,
    "MiB": 65_536,
}
"""Greatest value of each unit. A larger one is a slip: the run would lack memory or never end."""


def option(
    default: Any,
    help: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    refused: Mapping[str, str] | None = None,
) -> Any:
    """Return a dataclass field with its meaning, unit and range. Text may not be empty.

    Args:
        default: the default value, or a factory. None means "decided later"; `help` says by what.
        help: what the option means.
        unit: unit of a number; with "seconds" a duration such as `1h30m` is accepted too.
        minimum: least value of a number. A number with a minimum and no maximum has the greatest of
            its unit.
        maximum: greatest value of a number.
        refused: values that people try and that are not offered, with the reason.
    """
    own_range = maximum is not None
    if minimum is not None and maximum is None:
        maximum = _GREATEST[unit]
    metadata = {
        "help": help,
        "unit": unit,
        "minimum": minimum,
        "maximum": maximum,
        "own_range": own_range,
        "refused": refused or {},
    }
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def same_as(cls: type, name: str) -> Any:
    """Return a dataclass field with default, meaning, unit and range of option `name` in `cls`."""
    (declared,) = (f for f in fields(cls) if f.name == name)
    if declared.default_factory is not MISSING:
        return field(default_factory=declared.default_factory, metadata=declared.metadata)
    return field(default=declared.default, metadata=declared.metadata)


# --------------------------------------------------------------------------------------------------
# Checking values


def _shown_unit(metadata: Mapping[str, Any]) -> str:
    return durations.FORMS if metadata["unit"] == _SECONDS else metadata["unit"]


def _type_of(cls: type, name: str) -> Any:
    return typing.get_type_hints(cls)[name]


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the non-None members of `int | None`, or the annotation itself."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return tuple(a for a in typing.get_args(annotation) if a is not type(None))
    return (annotation,)


def _type_name(annotation: Any) -> str:
    (inner,) = _alternatives(annotation)
    if typing.get_origin(inner) is Literal:
        return " or ".join(typing.get_args(inner))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[inner]


def _convert(value: Any, annotation: Any, *, is_duration: bool) -> Any:
    """Return `value` as `annotation`'s type. Text is accepted where it reads as that type.

    Raises ValueError when the value does not fit the type.
    """
    (inner,) = _alternatives(annotation)
    optional = inner is not annotation
    if value is None or (optional and isinstance(value, str) and value.lower() == "none"):
        if optional:
            return None
        raise ValueError
    if typing.get_origin(inner) is Literal:
        if value in typing.get_args(inner):
            return value
        raise ValueError
    if inner is bool:
        if isinstance(value, bool):
            return value
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise ValueError
    if inner is str:
        if isinstance(value, str):
            return value
        raise ValueError
    if isinstance(value, bool):
        raise ValueError
    if inner is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return inner(durations.seconds_of(value) if is_duration and isinstance(value, str) else value)


def check_value(cls: type, name: str, value: Any) -> Any:
    """Return `value` converted to the type of option `name`.

    Raises InputError naming the option when the value does not fit.
    """
    annotation = _type_of(cls, name)
    metadata = next(f.metadata for f in fields(cls) if f.name == name)
    unit = f" ({_shown_unit(metadata)})" if metadata["unit"] else ""
    if reason := metadata["refused"].get(value if isinstance(value, str) else ""):
        raise InputError(f"{name}={value} is not offered: {reason}")
    try:
        result = _convert(value, annotation, is_duration=metadata["unit"] == _SECONDS)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{name}={value!r} must be {_type_name(annotation)}{unit}.") from None
    if isinstance(result, str) and (not result.strip() or "\0" in result):
        raise InputError(
            f"{name}={value!r} must not be empty{' or hold a null byte' if result.strip() else ''}."
        )
    if result is not None and not isinstance(result, (str, bool)):
        low, high = metadata.get("minimum"), metadata.get("maximum")
        if not math.isfinite(result):
            raise InputError(f"{name}={value!r} must be a finite number{unit}.")
        if low is not None and high is not None and not low <= result <= high:
            bound = f"at least {_shown(low)}" if result < low else f"at most {_shown(high)}"
            bounds = f"between {_shown(low)} and {_shown(high)}" if metadata["own_range"] else bound
            raise InputError(f"{name}={value!r} must be {bounds}{unit}.")
    return result


def _shown(bound: float) -> str:
    return f"{bound:.0f}" if float(bound).is_integer() else f"{bound:g}"


def from_mapping(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return an instance of the options class `cls` from plain values, each checked.

    Raises InputError for an unknown name (with the closest known one), a wrong type, or a value out
    of range.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise InputError(
                f"unknown parameter `{name}`.{did_you_mean(name, known)} Known: {', '.join(known)}."
            )
    return cls(**{name: check_value(cls, name, value) for name, value in values.items()})


def checked(config: T) -> T:
    """Return `config` with every value checked; for options that were set in Python, not parsed."""
    return from_mapping(type(config), dataclasses.asdict(config))  # type: ignore[call-overload]


def _is_a(value: Any, annotation: Any) -> bool:
    """Return whether `value` has the annotated type without conversion: text is never a number."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return isinstance(value, str) or value in members  # check_value names the choices
    if origin in (Union, types.UnionType):
        return any(_is_a(value, member) for member in members)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_a(item, members[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _is_a(key, members[0]) and _is_a(item, members[1]) for key, item in value.items()
        )
    if annotation in (int, float):
        kind = numbers.Integral if annotation is int else numbers.Real
        return isinstance(value, kind) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _wanted(annotation: Any) -> str:
    """Return the name of a type for a message: `True or False`, `a tuple of whole numbers`."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    plain = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
    if annotation in plain:
        return plain[annotation]
    if origin is Literal:
        return " or ".join(members)
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(member) for member in members)
    if origin is tuple:
        return f"a tuple of {_wanted(members[0]).removeprefix('a ')}s"
    if origin is dict:
        return f"a dict from {_wanted(members[0])} to {_wanted(members[1])}"
    return f"a {annotation.__name__}"


class Settable:
    """Base of option dataclasses that are changed in place.

    Setting a misspelt name, a value of another type or an impossible value raises InputError.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Check a value and set it; raise InputError for a wrong name or value."""
        known = [f.name for f in fields(self)]  # type: ignore[arg-type]
        where = type(self).__name__
        if name not in known:
            raise InputError(
                f"{where} has no option `{name}`.{did_you_mean(name, known)} Known: "
                f"{', '.join(known)}."
            )
        annotation = _type_of(type(self), name)
        (inner,) = _alternatives(annotation)
        if not (value is None and inner is not annotation) and not _is_a(value, inner):
            raise InputError(f"{where}.{name}={value!r} must be {_wanted(inner)}.")
        if inner in (int, float, bool, str) or typing.get_origin(inner) is Literal:
            value = check_value(type(self), name, value)
        object.__setattr__(self, name, value)


def to_mapping(config: Any) -> dict[str, Any]:
    """Return the options as plain values, as `config.json` holds them."""
    return dataclasses.asdict(config)


# --------------------------------------------------------------------------------------------------
# What is derived from the declarations


def default_of(f: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, also where a factory builds it."""
    return f.default_factory() if f.default_factory is not MISSING else f.default


def add_arguments(parser: argparse.ArgumentParser, cls: type, *, skip: Sequence[str] = ()) -> None:
    """Add one `--option` per field of `cls`, with underscores, as torchrun has them, or dashes.

    Args:
        parser: the parser that gets a group of arguments, named by the first line of the docstring
            of `cls`.
        cls: the options class.
        skip: names of fields that are left out.
    """
    group = parser.add_argument_group((cls.__doc__ or cls.__name__).splitlines()[0].rstrip("."))
    for f in fields(cls):
        if f.name in skip:
            continue
        default = default_of(f)
        unit = f" [{_shown_unit(f.metadata)}]" if f.metadata["unit"] else ""
        shown = "" if default is None else f" (default: {default})"
        help_text = f.metadata["help"].replace("%", "%%") + unit + shown
        flags = list(dict.fromkeys([f"--{f.name}", f"--{f.name.replace('_', '-')}"]))
        if _type_of(cls, f.name) is bool:
            group.add_argument(
                *flags, action="store_true", default=argparse.SUPPRESS, dest=f.name, help=help_text
            )
            negated = list(dict.fromkeys([f"--no_{f.name}", f"--no-{f.name.replace('_', '-')}"]))
            group.add_argument(
                *negated,
                action="store_false",
                default=argparse.SUPPRESS,
                dest=f.name,
                help=argparse.SUPPRESS if not default else f"switch {f.name} off",
            )
        else:
            group.add_argument(
                *flags,
                default=argparse.SUPPRESS,
                dest=f.name,
                metavar=f.name.upper(),
                help=help_text,
            )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise InputError(f"{message}. See {self.prog} --help.")


@dataclass(frozen=True)
class CommandLine:
    """Declaration of a command line: its options, operands and actions.

    `operands` declares arguments that are no option of a class (names of files, say). `fixed` holds
    options whose values the caller has decided; the command does not offer them, for the reason
    that `why_fixed` gives. `behind_dashes` names the words behind `--`, which are taken as they
    are. A command with `actions` takes one of these words first, and then the arguments of that
    action; it has no other options.
    """

    prog: str
    description: str
    classes: tuple[type, ...] = ()
    operands: Callable[[argparse.ArgumentParser], None] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    why_fixed: Mapping[str, str] = field(default_factory=dict)
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
        if self.behind_dashes:
            parser.usage = f"%(prog)s [options] -- {self.behind_dashes}"
        if self.actions:
            parser.add_argument(
                "action",
                choices=self.actions,
                metavar="ACTION",
                help=f"{', '.join(self.actions)}; each has its own --help",
            )
        if self.operands is not None:
            self.operands(parser)
        for cls in self.classes:
            add_arguments(parser, cls, skip=tuple(self.fixed))
        return parser

    def shown_options(self) -> list[argparse.Action]:
        """Return the options and operands that the help lists, without suppressed ones."""
        return [action for action in self.parser()._actions if action.help is not argparse.SUPPRESS]

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

    def parse(self, arguments: Sequence[str]) -> list[Any]:
        """Return an instance of each class, then the operands, then the words behind `--`.

        The operands are a namespace, and only returned where the command declares operands. The
        words behind `--` are only returned where it declares `behind_dashes`. Raises InputError on
        anything wrong. `--help` prints every option with its default and unit, and ends with exit
        code 0.
        """
        if self.actions and arguments and arguments[0] in self.actions:
            return self.actions[arguments[0]].parse(arguments[1:])
        words = list(arguments)
        end = words.index("--") if self.behind_dashes and "--" in words else len(words)
        namespace, unknown = self.parser().parse_known_intermixed_args(words[:end])
        if unknown:
            name = unknown[0].split("=")[0].removeprefix("--").replace("-", "_")
            if reason := self.why_fixed.get(name):
                raise InputError(
                    f"{self.prog} has no `{unknown[0].split('=')[0]}`: {reason}. "
                    f"See {self.prog} --help."
                )
            raise InputError(
                f"unknown option `{unknown[0]}`.{self._suggestion(unknown[0])} See {self.prog} "
                "--help."
            )
        given = {**vars(namespace), **self.fixed}
        instances: list[Any] = [
            from_mapping(cls, {f.name: given[f.name] for f in fields(cls) if f.name in given})
            for cls in self.classes
        ]
        instances += [namespace] if self.operands is not None or self.actions else []
        return [*instances, words[end + 1 :]] if self.behind_dashes else instances


def parse_command_line(
    arguments: Sequence[str], *classes: type, prog: str, description: str
) -> list[Any]:
    """Return an instance of each options class from command-line words.

    Raises InputError on anything wrong.
    """
    return CommandLine(prog, description, classes).parse(arguments)


def choices(cls: type, name: str) -> tuple[str, ...]:
    """Return the values that the option offers; none where it is not a choice."""
    (inner,) = _alternatives(_type_of(cls, name))
    return typing.get_args(inner) if typing.get_origin(inner) is Literal else ()


def command_line(*configs: Any) -> list[str]:
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


def parameters_source(cls: type) -> str:
    """Return the source of a notebook's parameters cell.

    Each field is one assignment with its meaning as a comment. `int | None` is written `: int =
    None`, since papermill's parameter inspection does not read unions.
    """
    lines = []
    for f in fields(cls):
        (inner,) = _alternatives(_type_of(cls, f.name))
        name = "str" if typing.get_origin(inner) is Literal else inner.__name__
        choices = (
            f" ({', '.join(typing.get_args(inner))})" if typing.get_origin(inner) is Literal else ""
        )
        unit = f" [{_shown_unit(f.metadata)}]" if f.metadata["unit"] else ""
        default = default_of(f)
        value = json.dumps(default) if isinstance(default, str) else repr(default)
        lines.append(f"{f.name}: {name} = {value}  # {f.metadata['help']}{choices}{unit}")
    return "\n".join(lines)


def _may_be(cls: type, f: dataclasses.Field[Any]) -> str:
    """Return the choices or the range of an option, as Markdown; "" for text."""
    (inner,) = _alternatives(_type_of(cls, f.name))
    if typing.get_origin(inner) is Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(inner))
    low, high = f.metadata["minimum"], f.metadata["maximum"]
    what = {bool: "on, off", int: "whole number", float: "number"}.get(inner, "")
    if low is None:
        return what
    return f"{what}, {_shown(low)} to {_shown(high)}"


def options_table(cls: type) -> str:
    """Return the options of `cls` as a Markdown table: name, default, values, unit, meaning."""
    rows = ["| option | default | may be | unit | meaning |", "|---|---|---|---|---|"]
    for f in fields(cls):
        default = default_of(f)
        shown = "" if default is None else f"`{default}`"
        rows.append(
            f"| `{f.name}` | {shown} | {_may_be(cls, f)} | {_shown_unit(f.metadata)} | "
            f"{f.metadata['help']} |"
        )
    return "\n".join(rows)


# --------------------------------------------------------------------------------------------------
# Plain dataclasses of numbers


def check_whole_numbers(values: Any, limits: Mapping[str, tuple[int, int]]) -> None:
    """Raise InputError for an attribute that is no whole number within its limits.

    Args:
        values: the object with the attributes.
        limits: least and greatest value by name of the attribute.
    """
    for name, (minimum, maximum) in limits.items():
        value = getattr(values, name)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise InputError(
                f"{name} is {value!r}; it must be a whole number from {minimum} to {maximum}."
            )

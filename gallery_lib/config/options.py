"""Options: how one is declared, and how its values are checked.

An options class is a dataclass. Text below a field says what the option means; `option(...)` adds a
unit and a range. Bad values raise InputError with the option's name, the value, and what the value
must be. `command_line` makes words of the same declarations, `parameters_source` a notebook's cell,
and `options_table` the tables of the documentation.

    @dataclass(frozen=True)
    class Sizes:
        batch_size: int = option(32, unit="samples", minimum=1)
        \"\"\"Samples per step.\"\"\"

    from_mapping(Sizes, {"batch_size": "64"})  # Sizes(batch_size=64)
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from gallery_lib.config.intervals import DURATIONS, check_plain, seconds_of
from gallery_lib.errors import InputError, did_you_mean

T = TypeVar("T")
_GREATEST = {
    **{"": 1e6, "batches": 10_000, "cores": 4096, "epochs": 1_000_000, "hosts": 4096},
    **{"images": 100_000_000, "notebooks": 1024, "passes": 10_000, "pixels": 16_384},
    **{"processes": 256, "samples": 1 << 20, "seconds": 30 * 86_400, "seeds": 1000},
    **{"steps": 1_000_000_000, "threads": 1024, "times": 1000, "tokens or frames": 1 << 20},
    **{"turns": 10_000, "units": 65_536, "variants": 64, "GiB": 65_536, "MiB": 65_536},
}
"""Greatest value of each unit. A larger one is a slip: the run would lack memory or never end."""
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def option(
    default: Any,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    refused: Mapping[str, str] | None = None,
) -> Any:
    """Return a dataclass field with unit and range. Text may not be empty.

    Args:
        default: the default value, or a factory. None means "decided later"; the option's text says
            by what.
        unit: unit of a number; with "seconds" a duration such as `1h30m` is accepted too.
        minimum: least value of a number; of one with a unit, 1 unless said otherwise. Without a
            maximum, a number with a minimum has the greatest of its unit.
        maximum: greatest value of a number.
        refused: values that people try and that are not offered, with the reason.
    """
    if unit and minimum is None:
        minimum = 1
    if minimum is not None and maximum is None:
        maximum = _GREATEST[unit]
    metadata = {"unit": unit, "minimum": minimum, "maximum": maximum, "refused": refused or {}}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def same_as(cls: type, name: str) -> Any:
    """Return a dataclass field with default, meaning, unit and range of option `name` in `cls`."""
    declared = options_of(cls)[name]
    return field(default=declared.default, metadata={"of": cls, **declared.field.metadata})


@dataclass(frozen=True)
class Option:
    """Declaration of one option, as its class has it."""

    name: str
    type: Any  # without None: bool, int, float, str, a Literal or a container
    optional: bool  # whether None is a value
    field: dataclasses.Field[Any]
    of: type  # the class whose text says what the option means
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def help(self) -> str:
        """Return what the option means."""
        return _texts(inspect.getfile(self.of))[self.of.__name__, self.name]

    @property
    def default(self) -> Any:
        """Return the default, also where a factory builds it."""
        return default_of(self.field)

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the values that the option offers; none where it is not a choice."""
        return typing.get_args(self.type) if typing.get_origin(self.type) is Literal else ()

    @property
    def shown_unit(self) -> str:
        """Return the unit as help texts and tables name it."""
        return DURATIONS if self.unit == "seconds" else self.unit

    @property
    def must_be(self) -> str:
        """Return what the option must be, for a message."""
        if self.choices:
            return " or ".join(self.choices)
        kind = self.type
        return _KINDS.get(kind) or (kind.__name__ if isinstance(kind, type) else str(kind))

    @property
    def bracket(self) -> str:
        """Return unit and least value behind a help text, ` [seeds, at least 2]`, or "".

        That 1 is the least of a number of things needs no word.
        """
        least = f"at least {shown(self.minimum)}" if self.minimum and self.minimum > 1 else ""
        text = ", ".join(filter(None, [self.shown_unit, least]))
        return f" [{text}]" if text else ""


@functools.cache
def _texts(file: str) -> dict[tuple[str, str], str]:
    """Return the text below each field of each class in a file, by the names of both."""
    return {
        (cls.name, declared.target.id): " ".join(text.value.value.split())
        for cls in ast.parse(Path(file).read_text(encoding="utf-8")).body
        if isinstance(cls, ast.ClassDef)
        for declared, text in zip(cls.body, cls.body[1:], strict=False)
        if isinstance(declared, ast.AnnAssign)
        and isinstance(declared.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
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
        values = {"of": cls, **f.metadata}
        declared[f.name] = Option(f.name, inner, inner is not hint, f, **values)
    return declared


def default_of(f: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, also where a factory builds it."""
    return f.default_factory() if f.default_factory is not MISSING else f.default


def to_mapping(config: Any) -> dict[str, Any]:
    """Return the options as plain values, as `config.json` holds them."""
    return dataclasses.asdict(config)


# --------------------------------------------------------------------------------------------------
# Checking


def _convert(value: Any, declared: Option) -> Any:
    """Return `value` as the option's type, which text may spell; ValueError where it does not."""
    is_text = isinstance(value, str)
    if declared.optional and (value is None or (is_text and value.lower() == "none")):
        return None
    if declared.choices or declared.type is str:
        if not is_text or (declared.choices and value not in declared.choices):
            raise ValueError
        return value
    if declared.type is bool:
        if not is_text and not isinstance(value, bool):
            raise ValueError
        return _TRUTH[value.lower()] if is_text else value
    is_part = declared.type is int and isinstance(value, float) and not value.is_integer()
    if value is None or isinstance(value, bool) or is_part:
        raise ValueError
    if is_text:
        check_plain(value)
        if declared.unit == "seconds":
            return seconds_of(value)
    return declared.type(value)


def check_value(cls: type, name: str, value: Any) -> Any:
    """Return `value` converted to the type of option `name`.

    Raises:
        InputError: naming the option when the value does not fit.
    """
    declared = options_of(cls)[name]
    given = f"{name}={value!r}"
    unit = f" ({declared.shown_unit})" if declared.unit else ""

    def refuse(why: str) -> InputError:
        return InputError(f"{why}.", parameter=name)

    if isinstance(value, str) and (reason := declared.refused.get(value)):
        raise InputError(f"{name}={value} is not offered: {reason}", parameter=name)
    try:
        result = _convert(value, declared)
    except (ValueError, TypeError, OverflowError, LookupError):
        raise refuse(f"{given} must be {declared.must_be}{unit}") from None
    if isinstance(result, str) and (not result.strip() or "\0" in result):
        raise refuse(f"{given} must not be empty{' or hold a null byte' if result.strip() else ''}")
    if isinstance(result, int | float) and not isinstance(result, bool):
        low, high = declared.minimum, declared.maximum
        if result == 0 and isinstance(value, str) and re.match(r"[^e]*[1-9]", value.lower()):
            raise refuse(f"{given} is so small that it would be 0{unit}")
        if not math.isfinite(result):
            raise refuse(f"{given} must be a finite number{unit}")
        if low is not None and high is not None and not low <= result <= high:
            raise refuse(f"{given} must be between {shown(low)} and {shown(high)}{unit}")
    return result


def shown(bound: float) -> str:
    """Return a bound as text, without a fraction where it is a whole number."""
    return f"{bound:.0f}" if float(bound).is_integer() else f"{bound:g}"


def from_mapping(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return an instance of the options class `cls` from plain values, each checked.

    Raises:
        InputError: for an unknown name (with the closest known one), a wrong type, or a value out
            of range.
    """
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
    """Return `config` with every value checked; for options that were set in Python, not parsed."""
    return from_mapping(type(config), to_mapping(config))


def check_whole_numbers(values: Any, limits: Mapping[str, tuple[int, int]]) -> None:
    """Raise InputError for an attribute of a plain object that is no whole number in its limits."""
    for name, (minimum, maximum) in limits.items():
        value = getattr(values, name)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise InputError(
                f"{name} is {value!r}; it must be a whole number from {minimum} to {maximum}.",
                parameter=name,
            )


# --------------------------------------------------------------------------------------------------
# Documenting


def parameters_source(cls: type) -> str:
    """Return the source of a notebook's parameters cell.

    Each field is one assignment with its meaning as a comment. `int | None` is written `: int =
    None`, since papermill's parameter inspection does not read unions.
    """
    lines = []
    for name, declared in options_of(cls).items():
        kind, default = declared.type.__name__, declared.default
        choices = ""
        if declared.choices:
            kind, choices = "str", f" ({', '.join(declared.choices)})"
        value = json.dumps(default) if isinstance(default, str) else repr(default)
        lines.append(f"{name}: {kind} = {value}  # {declared.help}{choices}{declared.bracket}")
    return "\n".join(lines)


def options_table(cls: type) -> str:
    """Return the options of `cls` as a Markdown table: name, default, values, unit, meaning."""
    rows = ["| option | default | may be | unit | meaning |", "|---|---|---|---|---|"]
    for name, declared in options_of(cls).items():
        default = "" if declared.default is None else f"`{declared.default}`"
        may_be = ", ".join(f"`{value}`" for value in declared.choices)
        if not may_be:
            kinds = {bool: "on, off", int: "whole number", float: "number"}
            may_be = kinds.get(declared.type, "")
            if declared.minimum is not None and declared.maximum is not None:
                may_be += f", {shown(declared.minimum)} to {shown(declared.maximum)}"
        unit = declared.shown_unit
        rows.append(f"| `{name}` | {default} | {may_be} | {unit} | {declared.help} |")
    return "\n".join(rows)

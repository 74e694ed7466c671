"""Options: how one is declared, and how its values are checked.

An options class is a dataclass whose fields are made by `option(...)`; config/ holds all of them.
Bad values raise InputError with the option's name, the value, and what the value must be.
`command_line` makes words of the same declarations, `parameters_source` a notebook's cell, and
`options_table` the tables of the documentation.

    @dataclass(frozen=True)
    class Sizes:
        batch_size: int = option(32, "samples per step", unit="samples", minimum=1)

    from_mapping(Sizes, {"batch_size": "64"})  # Sizes(batch_size=64)
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeVar, Union

from gallery_lib.config.intervals import DURATIONS, check_plain, seconds_of
from gallery_lib.errors import InputError, did_you_mean

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


# --------------------------------------------------------------------------------------------------
# Declaring


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
        minimum: least value of a number; of one with a unit, 1 unless said otherwise. Without a
            maximum, a number with a minimum has the greatest of its unit.
        maximum: greatest value of a number.
        refused: values that people try and that are not offered, with the reason.
    """
    if unit and minimum is None:
        minimum = 1
    if minimum is not None and maximum is None:
        maximum = _GREATEST[unit]
    metadata = {
        "help": help,
        "unit": unit,
        "minimum": minimum,
        "maximum": maximum,
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


@dataclass(frozen=True)
class Option:
    """Declaration of one option, as its class has it."""

    name: str
    type: Any  # without None: bool, int, float, str, a Literal or a container
    optional: bool  # whether None is a value
    field: dataclasses.Field[Any]
    help: str
    unit: str
    minimum: float | None
    maximum: float | None
    refused: Mapping[str, str]

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
        return DURATIONS if self.unit == _SECONDS else self.unit

    @property
    def bracket(self) -> str:
        """Return unit and least value behind a help text, ` [seeds, at least 2]`, or "".

        That 1 is the least of a number of things needs no word.
        """
        least = self.minimum if self.minimum is not None and self.minimum > 1 else None
        words = [self.shown_unit, f"at least {shown(least)}" if least else ""]
        text = ", ".join(word for word in words if word)
        return f" [{text}]" if text else ""


@functools.cache
def options_of(cls: type) -> Mapping[str, Option]:
    """Return the options that `cls` declares, by name."""
    hints = typing.get_type_hints(cls)
    declared = {}
    for f in fields(cls):
        (inner,) = _alternatives(hints[f.name])
        declared[f.name] = Option(
            f.name, inner, optional=inner is not hints[f.name], field=f, **f.metadata
        )
    return declared


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the non-None members of `int | None`, or the annotation itself."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return tuple(a for a in typing.get_args(annotation) if a is not type(None))
    return (annotation,)


def default_of(f: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, also where a factory builds it."""
    return f.default_factory() if f.default_factory is not MISSING else f.default


def to_mapping(config: Any) -> dict[str, Any]:
    """Return the options as plain values, as `config.json` holds them."""
    return dataclasses.asdict(config)


# --------------------------------------------------------------------------------------------------
# Checking


def type_name(declared: Option) -> str:
    """Return what an option must be, for a message."""
    if declared.choices:
        return " or ".join(declared.choices)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    kind = declared.type
    return names.get(kind) or (kind.__name__ if isinstance(kind, type) else str(kind))


def _convert(value: Any, declared: Option) -> Any:
    """Return `value` as the option's type. Text is accepted where it reads as that type.

    Raises:
        ValueError: when the value does not fit the type.
    """
    is_none = isinstance(value, str) and value.lower() == "none"
    if value is None or (declared.optional and is_none):
        if declared.optional:
            return None
        raise ValueError
    if declared.choices:
        if value in declared.choices:
            return value
        raise ValueError
    if declared.type is bool:
        if isinstance(value, bool):
            return value
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise ValueError
    if declared.type is str:
        if isinstance(value, str):
            return value
        raise ValueError
    if isinstance(value, bool):
        raise ValueError
    if declared.type is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    if isinstance(value, str):
        check_plain(value)
    is_duration = declared.unit == _SECONDS and isinstance(value, str)
    return declared.type(seconds_of(value) if is_duration else value)


def check_value(cls: type, name: str, value: Any) -> Any:
    """Return `value` converted to the type of option `name`.

    Raises:
        InputError: naming the option when the value does not fit.
    """
    declared = options_of(cls)[name]
    refuse = functools.partial(InputError, parameter=name)
    unit = f" ({declared.shown_unit})" if declared.unit else ""
    if reason := declared.refused.get(value if isinstance(value, str) else ""):
        raise refuse(f"{name}={value} is not offered: {reason}")
    try:
        result = _convert(value, declared)
    except (ValueError, TypeError, OverflowError):
        raise refuse(f"{name}={value!r} must be {type_name(declared)}{unit}.") from None
    if isinstance(result, str) and (not result.strip() or "\0" in result):
        raise refuse(
            f"{name}={value!r} must not be empty{' or hold a null byte' if result.strip() else ''}."
        )
    if result is not None and not isinstance(result, (str, bool)):
        low, high = declared.minimum, declared.maximum
        if result == 0 and isinstance(value, str) and re.match(r"[^e]*[1-9]", value.lower()):
            raise refuse(f"{name}={value!r} is so small that it would be 0{unit}.")
        if not math.isfinite(result):
            raise refuse(f"{name}={value!r} must be a finite number{unit}.")
        if low is not None and high is not None and not low <= result <= high:
            bound = f"at least {shown(low)}" if result < low else f"at most {shown(high)}"
            raise refuse(f"{name}={value!r} must be {bound}{unit}.")
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
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
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
    return from_mapping(type(config), dataclasses.asdict(config))  # type: ignore[call-overload]


def check_whole_numbers(values: Any, limits: Mapping[str, tuple[int, int]]) -> None:
    """Raise InputError for an attribute of a plain object that is no whole number in its limits.

    Args:
        values: the object with the attributes.
        limits: least and greatest value by name of the attribute.
    """
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
    for declared in options_of(cls).values():
        name = "str" if declared.choices else declared.type.__name__
        choices = f" ({', '.join(declared.choices)})" if declared.choices else ""
        default = declared.default
        value = json.dumps(default) if isinstance(default, str) else repr(default)
        lines.append(
            f"{declared.name}: {name} = {value}  # {declared.help}{choices}{declared.bracket}"
        )
    return "\n".join(lines)


def _may_be(declared: Option) -> str:
    """Return the choices or the range of an option, as Markdown; "" for text."""
    if declared.choices:
        return ", ".join(f"`{value}`" for value in declared.choices)
    kind = {bool: "on, off", int: "whole number", float: "number"}.get(declared.type, "")
    if not kind or declared.minimum is None or declared.maximum is None:
        return kind
    return f"{kind}, {shown(declared.minimum)} to {shown(declared.maximum)}"


def options_table(cls: type) -> str:
    """Return the options of `cls` as a Markdown table: name, default, values, unit, meaning."""
    rows = ["| option | default | may be | unit | meaning |", "|---|---|---|---|---|"]
    for declared in options_of(cls).values():
        default = "" if declared.default is None else f"`{declared.default}`"
        rows.append(
            f"| `{declared.name}` | {default} | {_may_be(declared)} | {declared.shown_unit} | "
            f"{declared.help} |"
        )
    return "\n".join(rows)

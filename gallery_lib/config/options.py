"""Options: how one is declared, and how its values are checked.

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
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from gallery_lib.errors import InputError, did_you_mean

T = TypeVar("T")
GREATEST = 1e9
"""Greatest value of a number. A larger one is a slip: the run would lack memory or never end."""
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
    """Return `value` converted to the type of option `name`.

    Raises:
        InputError: naming the option when the value does not fit.
    """
    declared = options_of(cls)[name]
    try:
        return declared.convert(value)
    except (ValueError, TypeError, OverflowError, KeyError):
        message = f"{name}={value!r} must be {declared.must_be}."
        raise InputError(message, parameter=name) from None


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
    """Return `config` with every value checked, in its parts too; for options set in Python.

    Raises:
        InputError: for a value of another type or out of range.
    """
    cls: Any = type(config)
    values = {name: check_value(cls, name, getattr(config, name)) for name in options_of(cls)}
    parts = {name: checked(part) for name, part in values.items() if dataclasses.is_dataclass(part)}
    return cls(**values | parts)

"""Options that callers change in place: `config.compute.bf16 = True`, checked as it is set."""

from __future__ import annotations

import numbers
import types
import typing
from typing import Any, Literal, Union

from gallery_lib.config.options import check_value, options_of
from gallery_lib.errors import InputError, did_you_mean


class Settable:
    """Base of option dataclasses that are changed in place.

    Setting a misspelt name, a value of another type or an impossible value raises InputError.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Check a value and set it; raise InputError for a wrong name or value."""
        cls: Any = type(self)
        known, where = options_of(cls), cls.__name__
        if name not in known:
            raise InputError(
                f"{where} has no option `{name}`.{did_you_mean(name, known)} "
                f"Known: {', '.join(known)}.",
                parameter=name,
            )
        declared = known[name]
        if not (value is None and declared.optional) and not _is_a(value, declared.type):
            raise InputError(
                f"{where}.{name}={value!r} must be {_wanted(declared.type)}.", parameter=name
            )
        if declared.type in (int, float, bool, str) or declared.choices:
            value = check_value(cls, name, value)
        object.__setattr__(self, name, value)


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

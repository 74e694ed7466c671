"""JSON files: written whole or not at all, and read against a declared shape.

A misfit is an InputError that names the file and the place in it (`tasks.resnet50.rows: must be an
object, and is a list`). Numbers are finite: NaN and Infinity, which are no JSON, are refused both
ways.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import shutil
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write

T = TypeVar("T")

_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}
_NAMES[type(None)] = "null"


class Misfit(ValueError):
    """A value that does not have its declared shape, and its `place`, such as `rows.0.speedup`."""

    def __init__(self, problem: str, place: str = "") -> None:
        """Put the place in front of the problem."""
        super().__init__(f"{place}: {problem}" if place else problem)
        self.place = place


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON to `path`, which never holds half of it.

    Raises:
        ValueError: for NaN: a number is true or absent.
    """
    with atomic_write(path, sync=True) as file:
        json.dump(value, file, indent=1, allow_nan=False)


def read_json(path: Path, shape: type[T], *, again: str, schema: int | None = None) -> T:
    """Return the file's content as `shape`: a dataclass, a container, or a type with alternatives.

    Args:
        path: the file.
        shape: the declared shape.
        again: what to do about a file that cannot be used, as a sentence.
        schema: the number that the file must have under `schema`, which `shape` does not name;
            None: it has none.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it cannot be read, is no JSON, of another schema, or does not have the shape.
    """
    try:
        value = json.loads(path.read_bytes(), parse_constant=_refuse)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", parameter=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged, or of another version: it is no JSON ({error}). {again}",
            parameter=str(path),
        ) from None
    try:
        if schema is not None:
            if not isinstance(value, dict):
                raise Misfit(f"must be an object, and is {_name(value)}")
            if (file_schema := value.pop("schema", None)) != schema:
                raise InputError(
                    f"{path} has schema {file_schema!r}, and this version reads {schema}. {again}",
                    parameter="schema",
                )
        return converted(value, shape)
    except Misfit as error:
        raise InputError(
            f"{path} is damaged, or of another version: {error}. {again}",
            parameter=error.place or str(path),
        ) from None


def set_aside(path: Path, why: object) -> Path | None:
    """Move an unusable file or folder of a cache aside, as NAME.damaged, and print a line about it.

    Return its new path. Return None where the cache cannot be written; then it is left alone.
    """
    aside = path.with_name(f"{path.name}.damaged")
    try:
        if aside.is_dir():
            shutil.rmtree(aside)
        path.replace(aside)
        message = f"{path} was set aside as {aside.name}, and is made anew"
    except OSError:
        aside, message = None, f"{path} is not used"  # type: ignore[assignment]
    with contextlib.suppress(OSError, ValueError):
        print(f"{message}: {why}", file=sys.stderr, flush=True)
    return aside


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def converted(value: Any, shape: type[T], place: str = "") -> T:
    """Return `value`, of plain JSON, as `shape`.

    Raises:
        Misfit: with the place, where the value has another shape.
    """
    return cast(T, _converted(value, shape, place))


def _converted(value: Any, shape: Any, place: str) -> Any:
    origin, inside = get_origin(shape), get_args(shape)
    if shape is Any or shape is object:
        return value
    if origin in (Union, types.UnionType):
        return _one_of(value, inside, place)
    if origin is Literal:
        return (
            value
            if value in inside
            else _misfit(place, f"one of {', '.join(map(repr, inside))}", value)
        )
    if dataclasses.is_dataclass(shape):
        return _dataclass(value, cast(type, shape), place)
    if shape is float:
        return _number(value, place)
    plain = origin or shape
    if issubclass(plain, Mapping):
        values = value if isinstance(value, dict) else _misfit(place, "an object", value)
        of = inside[1] if inside else Any
        return {name: _converted(entry, of, _at(place, name)) for name, entry in values.items()}
    if plain in (list, tuple, Sequence) or plain is typing.Sequence:
        return _row(value, plain, inside, place)
    return (
        value
        if type(value) is shape
        else _misfit(place, _NAMES.get(shape, getattr(shape, "__name__", str(shape))), value)
    )


def _number(value: Any, place: str) -> Any:
    try:
        if type(value) in (int, float) and math.isfinite(value):
            return value
    except OverflowError:
        pass
    return _misfit(place, "a number", value)


def _one_of(value: Any, shapes: Sequence[Any], place: str) -> Any:
    misfits = []
    for shape in shapes:
        try:
            return _converted(value, shape, place)
        except Misfit as error:
            misfits.append((shape, error))
    others = [error for shape, error in misfits if shape is not type(None)]
    if value is not None and len(others) == 1:
        raise others[0]
    return _misfit(place, " or ".join(_NAMES.get(shape, "an object") for shape in shapes), value)


def _row(value: Any, plain: Any, inside: Sequence[Any], place: str) -> Any:
    values = value if isinstance(value, list) else _misfit(place, "a list", value)
    if plain is tuple and inside and inside[-1] is not Ellipsis:
        if len(values) != len(inside):
            _misfit(place, f"a list of {len(inside)}", value)
        return tuple(
            _converted(entry, of, _at(place, str(number)))
            for number, (entry, of) in enumerate(zip(values, inside, strict=True))
        )
    of = inside[0] if inside else Any
    return (tuple if plain is tuple else list)(
        _converted(entry, of, _at(place, str(number))) for number, entry in enumerate(values)
    )


@functools.cache
def _fields(shape: type) -> tuple[dict[str, dataclasses.Field[Any]], dict[str, Any]]:
    """Return the fields of a dataclass by name, and their types."""
    return {
        field.name: field for field in dataclasses.fields(shape) if field.init
    }, typing.get_type_hints(shape)


def _dataclass(value: Any, shape: type, place: str) -> Any:
    values = value if isinstance(value, dict) else _misfit(place, "an object", value)
    fields, hints = _fields(shape)
    if unknown := sorted(set(values) - set(fields)):
        raise Misfit("is not known here", _at(place, unknown[0]))
    required = [
        name
        for name, field in fields.items()
        if field.default is field.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in required if name not in values]:
        raise Misfit("is missing", _at(place, missing[0]))
    return shape(
        **{name: _converted(entry, hints[name], _at(place, name)) for name, entry in values.items()}
    )


def _at(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _name(value: Any) -> str:
    text = repr(value)
    shown = (
        f" ({text if len(text) <= 40 else text[:39] + '…'})"
        if not isinstance(value, dict | list)
        else ""
    )
    return _NAMES.get(type(value), type(value).__name__) + shown


def _misfit(place: str, expected: str, value: Any) -> typing.NoReturn:
    raise Misfit(f"must be {expected}, and is {_name(value)}", place)

"""JSON files: written whole or not at all, and read against a declared shape.

msgspec holds what was read against the shape. A misfit is an InputError that names the file, the
place in it (such as `tasks[...].rows`), and what was expected. A dataclass knows all its fields; a
shape of `having` allows others. Numbers are finite: NaN, Infinity and 1e999 are refused. On a
machine that has torch and no msgspec, files are read as what they are declared to be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Union, get_args, get_origin

from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write
from gallery_lib.system.processes import tell

try:
    import msgspec
except ModuleNotFoundError:
    msgspec = None  # type: ignore[assignment]

T = TypeVar("T")
_LARGEST = 1e300
"""Bound of numbers in a file: far above what is measured, and products of a few stay finite."""


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


def read_json(
    path: Path,
    shape: type[T],
    *,
    again: str,
    schema: int | None = None,
    check: Callable[[T], object] | None = None,
) -> T:
    """Return the file's content as `shape`: a dataclass, a container, or a type with alternatives.

    Args:
        path: the file.
        shape: the declared shape.
        again: what to do about a file that cannot be used, as a sentence.
        schema: the number that the file must have under `schema`, which `shape` does not name;
            None: it has none.
        check: raises Misfit for what a shape cannot say.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it cannot be read, is no JSON, of another schema, or does not have the shape.
    """
    damaged = f"{path} is damaged, or of another version"
    try:
        value = parsed(path.read_bytes())
        if schema is not None:
            value = converted(value, dict[str, Any])
            if (file_schema := value.pop("schema", None)) != schema:
                raise InputError(
                    f"{path} has schema {file_schema!r}, and this version reads {schema}. {again}",
                    parameter="schema",
                )
        content = converted(value, shape)
        if check is not None:
            check(content)
        return content
    except (FileNotFoundError, InputError):
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", parameter=str(path)) from None
    except Misfit as error:
        place = error.place or str(path)
        raise InputError(f"{damaged}: {error}. {again}", parameter=place) from None
    except (ValueError, RecursionError) as error:
        what = f"{damaged}: it is no JSON ({error}). {again}"
        raise InputError(what, parameter=str(path)) from None


def set_aside(path: Path, why: object) -> Path | None:
    """Move an unusable file or folder of a cache aside, as NAME.damaged, and print a line about it.

    Return its new path. Return None where the cache cannot be written; then it is left alone.
    """
    aside = path.with_name(f"{path.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    message, is_kept = f"{path} was set aside as {aside.name}, and is made anew", True
    try:
        path.replace(aside)
    except OSError:
        message, is_kept = f"{path} is not used", False
    with contextlib.suppress(OSError, ValueError):
        tell(f"{message}: {why}")
    return aside if is_kept else None


def parsed(content: str | bytes) -> Any:
    """Return what JSON text holds; ValueError or RecursionError for other text, and for NaN."""
    return json.loads(content, parse_constant=_number, parse_float=_number, parse_int=_number)


def _number(text: str) -> float:
    if not abs(float(text)) < _LARGEST:
        raise ValueError(f"{text[:20]} is no finite number")
    return int(text) if text.lstrip("-").isdigit() else float(text)


def having(fields: Mapping[str, Any]) -> Any:
    """Return the shape of an object with these fields among others.

    A field may be such a mapping itself, or a list with the shape of its entries.
    """

    def kind(of: Any) -> Any:
        if isinstance(of, list):
            return list.__class_getitem__(kind(of[0]))
        return having(of) if isinstance(of, dict) else of

    return TypedDict("having", {name: kind(of) for name, of in fields.items()})  # type: ignore


def converted(value: Any, shape: type[T], place: str = "") -> T:
    """Return `value`, of plain JSON, as `shape`: what msgspec knows, or what `having` returns.

    Raises:
        Misfit: with the place, where the value has another shape.
    """
    if msgspec is None:
        return _taken_for(value, shape)
    try:
        kept = msgspec.convert(value, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        problem, _, where = str(error).partition(" - at `$")
        raise Misfit(problem, (place + where.rstrip("`")).lstrip(".")) from None
    _refuse_unknown(value, kept, place)
    return kept


def _taken_for(value: Any, shape: Any) -> Any:
    """Return `value` built into the dataclasses and containers of `shape`, without any check."""
    kind, inside = get_origin(shape), get_args(shape)
    if kind in (Union, types.UnionType):
        return value if value is None else _taken_for(value, inside[0])
    if dataclasses.is_dataclass(shape):
        hints = typing.get_type_hints(shape)
        return shape(**{name: _taken_for(one, hints[name]) for name, one in value.items()})  # type: ignore[operator]
    if kind is dict or kind is Mapping:
        return {name: _taken_for(one, inside[1]) for name, one in value.items()}
    if kind in (list, tuple):
        alike = kind is list or inside[-1] is Ellipsis
        shapes = [inside[0]] * len(value) if alike else inside
        return kind(_taken_for(one, of) for one, of in zip(value, shapes, strict=False))
    return value


def _refuse_unknown(value: Any, kept: Any, place: str) -> None:
    """Raise Misfit for a field that a dataclass in `kept`, made of `value`, does not declare."""
    if dataclasses.is_dataclass(kept):
        kept = vars(kept)
        if unknown := sorted(value.keys() - kept.keys()):
            raise Misfit("is not known here", f"{place}.{unknown[0]}".lstrip("."))
    if isinstance(value, dict):
        for name in value.keys() & kept.keys():
            _refuse_unknown(value[name], kept[name], f"{place}.{name}")
    elif isinstance(value, list):
        for number, (entry, kept_entry) in enumerate(zip(value, kept, strict=True)):
            _refuse_unknown(entry, kept_entry, f"{place}[{number}]")

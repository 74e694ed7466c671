"""JSON files: written whole or not at all, and read against a declared shape.

msgspec holds what was read against the shape. A misfit is an InputError that names the file, the
place in it (such as `tasks[...].rows`), and what was expected. Fields that a shape does not name
are left out. Numbers are finite: NaN, Infinity and 1e999 are refused.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any, TypeVar

from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write
from gallery_lib.system.processes import tell

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
) -> T:
    """Return the file's content as `shape`: a dataclass, a container, or a type with alternatives.

    Args:
        path: the file.
        shape: the declared shape.
        again: what to do about a file that cannot be used, as a sentence.
        schema: the number that the file must have under `schema`; None: it has none.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it cannot be read, is no JSON, of another schema, or does not have the shape.
    """
    place = str(path)
    try:
        value = parsed(path.read_bytes())
        if schema is not None and (number := converted(value, dict).get("schema")) != schema:
            place, problem = "schema", f"has schema {number!r}, and this version reads {schema}"
        else:
            return converted(value, shape)
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except Misfit as error:
        place = error.place or place
        problem = f"is damaged, or of another version: {error}"
    except (ValueError, RecursionError) as error:
        problem = f"is damaged, or of another version: it is no JSON ({error})"
    raise InputError(f"{path} {problem}. {again}", parameter=place)


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


def converted(value: Any, shape: type[T], place: str = "") -> T:
    """Return `value`, of plain JSON, as `shape`: what msgspec knows.

    Raises:
        Misfit: with the place, where the value has another shape.
    """
    import msgspec  # which a machine for kernels alone has not

    try:
        return msgspec.convert(value, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        problem, _, where = str(error).partition(" - at `$")
        raise Misfit(problem, (place + where.rstrip("`")).lstrip(".")) from None

"""JSON files: written whole or not at all, and read against a declared shape.

msgspec holds what was read against the shape. A misfit is an InputError that names the file, the
place in it (such as `tasks[...].rows`), and what was expected. Fields that a shape does not name
are left out. Numbers are finite: NaN, Infinity and 1e999 are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write

T = TypeVar("T")
_LARGEST = 1e300
"""Bound of numbers in a file: far above what is measured, and products of a few stay finite."""


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
        schema: the number that the file must have under `schema`; None: it has none.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it cannot be read, is no JSON, of another schema, or does not have the shape.
    """
    import msgspec  # which a machine for kernels alone has not

    place = str(path)
    try:
        text = path.read_bytes()
        value = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_number)
        if schema is not None:
            found = value.get("schema") if isinstance(value, dict) else None
            if found != schema:
                what = f"has schema {found!r}, and this version reads {schema}"
                raise InputError(f"{path} {what}. {again}", parameter="schema")
        return msgspec.convert(value, shape)
    except (FileNotFoundError, InputError):
        raise
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except msgspec.ValidationError as error:
        words, _, where = str(error).partition(" - at `$")
        place = where.rstrip("`").lstrip(".") or str(path)
        problem = f"is damaged, or of another version: {where and place + ': '}{words}"
    except (ValueError, RecursionError) as error:
        problem = f"is damaged, or of another version: it is no JSON ({error})"
    raise InputError(f"{path} {problem}. {again}", parameter=place)


def _number(text: str) -> float:
    if not abs(float(text)) < _LARGEST:
        raise ValueError(f"{text[:20]} is no finite number")
    return int(text) if text.lstrip("-").isdigit() else float(text)

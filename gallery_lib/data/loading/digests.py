"""Digests by which ranks find out whether they have the same data, without sending it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gallery_lib.data.loading.length import length_of
from gallery_lib.data.loading.nesting import members

_PLAIN = (str, bytes, bool, int, float, complex, type(None), np.generic)


def digest(value: Any) -> bytes:
    """Return 32 bytes, equal for equal values: tensors, arrays, numbers, text and nestings of them.

    Of other objects the type counts, with their bytes (`tobytes`, as images have it) or attributes.
    """
    result = hashlib.blake2b(digest_size=32)
    _feed(result.update, value, 0)
    return result.digest()


def _feed(update: Callable[[bytes], None], value: Any, depth: int) -> None:
    update(type(value).__name__.encode())
    if isinstance(value, list) and (numbers := _numbers(value)) is not None:
        update(numbers.tobytes())
    elif isinstance(value, Tensor):
        update(f"{tuple(value.shape)} {value.dtype}".encode())
        update(_bytes_of(value))
    elif isinstance(value, np.ndarray):
        update(f"{value.shape} {value.dtype}".encode())
        update(value.tobytes() if value.dtype != object else repr(value.tolist()).encode())
    elif isinstance(value, _PLAIN):
        update(repr(value).encode())
    elif isinstance(value, PurePath):
        update(str(value).encode())
    elif isinstance(value, (set, frozenset)):
        for one in sorted(digest(item) for item in value):
            update(one)
    elif depth < 8 and (inside := members(value)) is not None:
        for key, item in inside.items():
            update(repr(key).encode())
            _feed(update, item, depth + 1)
    elif callable(tobytes := getattr(type(value), "tobytes", None)):
        update(tobytes(value))
    elif depth < 8:
        for name, item in getattr(value, "__dict__", {}).items():
            update(name.encode())
            _feed(update, item, depth + 1)


def _numbers(values: list[Any]) -> Any:
    """Return a list of plain integers as an array, which is read many times faster; else None."""
    try:
        return np.asarray(values, np.int64) if all(type(v) is int for v in values) else None
    except OverflowError:
        return None


def _bytes_of(tensor: Tensor) -> bytes:
    plain = tensor.detach()
    if plain.is_nested or plain.layout is not torch.strided or plain.is_meta:
        return b"" if plain.is_meta or plain.is_nested else _bytes_of(plain.to_dense())
    return plain.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def of_data(dataset: Any) -> bytes:
    """Return a digest of a map-style data set: its length, and samples of what it stores.

    No item is read. The digest covers lists, arrays and tensors. These may also be attributes that
    are as long as the data set. Subset and ConcatDataset lead to the data sets that they are made
    of. Of a file's path only the name counts, because folders differ between hosts.
    """
    return digest(_sample(dataset, 0))


def _sample(data: Any, depth: int) -> Any:
    length = length_of(data)
    if isinstance(data, (list, tuple, range, np.ndarray, Tensor)):
        return [
            length,
            [_named(data[place]) for place in sorted({0, length // 2, length - 1})]
            if length
            else [],
        ]
    parts: list[Any] = [type(data).__name__, length]
    if depth > 4:
        return parts
    for name, value in sorted(getattr(data, "__dict__", {}).items()):
        if name in ("dataset", "datasets", "tensors"):
            inner = list(value)[:64] if isinstance(value, (list, tuple)) else [value]
            parts += [name, [_sample(one, depth + 1) for one in inner]]
        elif (
            isinstance(value, (list, tuple, range, np.ndarray, Tensor))
            and length
            and length_of(value) == length
        ):
            parts += [name, _sample(value, depth + 1)]
    return parts


def _named(value: Any, depth: int = 0) -> Any:
    """Return what counts of one element: its type if the value means nothing elsewhere."""
    if isinstance(value, (str, PurePath)):
        return str(value).rsplit("/", 1)[-1]
    if isinstance(value, (*_PLAIN, Tensor, np.ndarray)):
        return value
    if isinstance(value, (list, tuple)) and depth < 3:
        return [_named(item, depth + 1) for item in value[:16]]
    if isinstance(value, dict) and depth < 3:
        return [[str(key), _named(item, depth + 1)] for key, item in list(value.items())[:16]]
    return type(value).__name__

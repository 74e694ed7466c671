"""Let the ranks find out whether they have the same data, without sending it.

They exchange digests. A stream's first items, or a sampler's order, are looked at in a forked
process, whose side effects end with it. So nothing is taken away from the training: files are read,
generators drawn from and iterators used up in the other process.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gallery_lib.comm import process_group
from gallery_lib.data.loading.nesting import members
from gallery_lib.errors import InputError
from gallery_lib.system.processes import die_with_parent

T = TypeVar("T")

_PLAIN = (str, bytes, bool, int, float, complex, type(None), np.generic)
_LONGEST_SECONDS = 60.0


def try_on_all_ranks(
    what: str, look: Callable[[], T], view: Callable[[T], Any]
) -> tuple[T, list[Any]]:
    """Return what `look()` finds on this rank, and the `view` of it on each. A collective call.

    Raises:
        InputError: on every rank, where `look` fails on one of them; `what` is looked at.
    """
    found, reason = _in_child(look)
    views = process_group.all_ranks((reason, None if reason else view(found)))
    if failed := [rank for rank, (reason, _) in enumerate(views) if reason]:
        raise InputError(
            f"{what} could not be tried on rank {', '.join(map(str, failed))} "
            f"({views[failed[0]][0]}), so it is not known whether it divides itself by rank. Set "
            "config.loader.shard = 'always' to have it divided, or 'never' if it does.",
            parameter="loader",
        )
    return found, [seen for _, seen in views]


def _in_child(work: Callable[[], Any]) -> tuple[Any, str]:
    """Return (result, "") of `work()`, run in a forked process, or (None, why there is none)."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(work, sender))
    try:
        with warnings.catch_warnings():
            # Python warns of forks beside threads; the child runs nothing that they may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        sender.close()
        if not receiver.poll(_LONGEST_SECONDS):
            return None, f"nothing came in {_LONGEST_SECONDS:.0f} s"
        return receiver.recv()
    except EOFError:
        return None, "the process that looked at it ended early"
    except AssertionError as error:  # of a daemonic process, which may have no children
        return None, str(error)
    finally:
        receiver.close()
        if process.pid is not None:
            process.kill()
            process.join()


def _answer(work: Callable[[], Any], sender: Connection) -> None:
    die_with_parent()
    torch.set_num_threads(1)  # OpenMP's other threads do not exist here
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        answer = (work(), "")
    except BaseException as error:
        message = " ".join(str(error).split())[:200]
        answer = (None, f"{type(error).__name__}: {message}")
    sender.send(answer)


def differ_on_all_ranks(views: Sequence[Any], what: str) -> bool:
    """Return True if no two ranks have the same data, False if all have the same.

    `views` has a digest of each rank's data, or None where a rank has none at all.

    Raises:
        InputError: on every rank when neither is so.
    """
    if len(set(views)) == 1:
        return False
    if None in views:
        empty = ", ".join(str(rank) for rank, view in enumerate(views) if view is None)
        raise InputError(
            f"{what} has nothing at all for rank {empty}, and something for others. Give every "
            "rank a share, or the whole and config.loader.shard = 'always'.",
            parameter="loader",
        )
    if len(set(views)) == len(views):
        return True
    ranks_by_view: dict[Any, list[str]] = {}
    for rank, view in enumerate(views):
        ranks_by_view.setdefault(view, []).append(str(rank))
    groups = "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}" for ranks in ranks_by_view.values()
    )
    raise InputError(
        f"{what} begins alike on some ranks and not on others ({groups}). Give all ranks the same "
        "and config.loader.shard = 'always', or each rank its own share and config.loader.shard = "
        "'never'.",
        parameter="loader",
    )


def length_of(data: Any) -> int | None:
    """Return `len(data)`, or None if it has none."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # the latter by torch's own samplers
        return None


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

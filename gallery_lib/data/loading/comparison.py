"""Let the ranks find out whether they have the same data, without sending it.

They exchange digests. A stream's first items, or a sampler's order, are read in a forked process,
so that nothing is taken away from the training: its side effects end with it.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gallery_lib.comm import process_group
from gallery_lib.data.loading.nesting import members
from gallery_lib.errors import InputError
from gallery_lib.system.processes import die_with_parent

_PLAIN = (str, bytes, bool, int, float, complex, type(None))
_STORES = (list, tuple, range, np.ndarray, Tensor)
_LONGEST_SECONDS = 60.0


def refuse_unlike(views: list[Any], what: str, hint: str = "give every rank the same") -> None:
    """Raise InputError, on every rank, unless all ranks' views of `what` are alike."""
    if len(set(views)) > 1:
        groups = "; ".join(
            f"rank {', '.join(str(rank) for rank, other in enumerate(views) if other == view)}"
            for view in dict.fromkeys(views)
        )
        raise InputError(
            f"{what} differs from rank to rank ({groups}), so that it cannot be divided among "
            "them. If each rank has its own share, set config.loader.shard = 'never'; to have it "
            f"divided all the same, 'always'; otherwise {hint}.",
            parameter="loader",
        )


def try_on_all_ranks(what: str, look: Callable[[], Any]) -> list[Any]:
    """Return what `look()` finds on each rank, in a forked process. A collective call.

    Raises:
        InputError: on every rank, where `look` fails on one of them; `what` is looked at.
    """
    views = process_group.all_ranks(_in_child(look))
    if failed := [rank for rank, (_, reason) in enumerate(views) if reason]:
        raise InputError(
            f"{what} could not be tried on rank {', '.join(map(str, failed))} "
            f"({views[failed[0]][1]}), so it is not known whether it divides itself by rank. Set "
            "config.loader.shard = 'always' to have it divided, or 'never' if it does.",
            parameter="loader",
        )
    return [seen for seen, _ in views]


def _in_child(work: Callable[[], Any]) -> tuple[Any, str]:
    """Return (result, "") of `work()`, or (None, why there is none)."""
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
        answer = (None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    sender.send(answer)


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
    for part in _parts(value, 0):
        result.update(part)
    return result.digest()


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    if isinstance(value, Tensor):
        yield f"{tuple(value.shape)} {value.dtype}".encode()
        if not (value.is_nested or value.is_meta):
            plain = value.detach() if value.layout is torch.strided else value.detach().to_dense()
            yield plain.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, (np.ndarray, np.generic)):
        yield f"{value.shape} {value.dtype}".encode()
        yield repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
    elif isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif isinstance(value, PurePath):
        yield str(value).encode()
    elif isinstance(value, (set, frozenset)):
        yield from sorted(map(digest, value))
    elif depth < 8:
        inside = members(value)
        if inside is None and callable(tobytes := getattr(type(value), "tobytes", None)):
            inside = {"": tobytes(value)}
        for key, item in (getattr(value, "__dict__", {}) if inside is None else inside).items():
            yield repr(key).encode()
            yield from _parts(item, depth + 1)


def of_data(dataset: Any) -> bytes:
    """Return a digest of a map-style data set: its length, and samples of what it stores.

    No item is read. The digest covers lists, arrays and tensors. These may also be attributes that
    are as long as the data set. Subset and ConcatDataset lead to the data sets that they are made
    of. Of a file's path only the name counts, because folders differ between hosts.
    """
    return digest(_sample(dataset, 0))


def _sample(data: Any, depth: int) -> Any:
    length = length_of(data)
    if isinstance(data, _STORES):
        places = sorted({0, length // 2, length - 1}) if length else []
        return [length, [_named(data[place]) for place in places]]
    parts: list[Any] = [type(data).__name__, length]
    for name, value in sorted(getattr(data, "__dict__", {}).items()) if depth < 5 else ():
        if name in ("dataset", "datasets", "tensors"):
            inner = list(value)[:64] if isinstance(value, (list, tuple)) else [value]
            parts += [name, [_sample(one, depth + 1) for one in inner]]
        elif isinstance(value, _STORES) and length and length_of(value) == length:
            parts += [name, _sample(value, depth + 1)]
    return parts


def _named(value: Any, depth: int = 0) -> Any:
    """Return what counts of one element: its type if the value means nothing elsewhere."""
    if isinstance(value, (str, PurePath)):
        return str(value).rsplit("/", 1)[-1]
    if isinstance(value, (*_PLAIN, Tensor, np.ndarray, np.generic)):
        return value
    if isinstance(value, (list, tuple, dict)) and depth < 3:
        items = list(value.items() if isinstance(value, dict) else value)[:16]
        return [_named(item, depth + 1) for item in items]
    return type(value).__name__

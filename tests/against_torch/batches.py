"""Batches of many container types, and the function that unpacks them for a training loop.

An item of the data set is `(index, x, target)`. The index shows later which samples a rank has
seen.
"""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import default_collate


class Named(NamedTuple):
    index: Tensor
    x: Tensor
    y: Tensor


@dataclass
class Record:
    index: Tensor
    x: Tensor
    y: Tensor


class Encoding(UserDict[str, Any]):
    """A batch as tokenizers return it, with keys, attributes and `to`."""

    def to(self, device: Any) -> Encoding:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


class Graph:
    """A batch that is no container but has `.to(device)`, as graphs have it."""

    def __init__(self, index: Tensor, x: Tensor, y: Tensor) -> None:
        self.index, self.x, self.y = index, x, y

    def to(self, device: Any, non_blocking: bool = False) -> Graph:
        return Graph(
            *(t.to(device, non_blocking=non_blocking) for t in (self.index, self.x, self.y))
        )


class Rows(list[Any]):
    """A batch whose type is a subclass of `list`."""


def _columns(items: Sequence[Any]) -> list[Tensor]:
    return default_collate(list(items))


def as_tuple(items: Sequence[Any]) -> Any:
    return tuple(_columns(items))


def as_dict(items: Sequence[Any]) -> Any:
    return dict(zip(("index", "x", "y"), _columns(items), strict=True))


def as_ordered(items: Sequence[Any]) -> Any:
    return OrderedDict(as_dict(items))


def as_default(items: Sequence[Any]) -> Any:
    return defaultdict(list, as_dict(items))


def as_encoding(items: Sequence[Any]) -> Any:
    return Encoding(as_dict(items))


def as_named(items: Sequence[Any]) -> Any:
    return Named(*_columns(items))


def as_record(items: Sequence[Any]) -> Any:
    return Record(*_columns(items))


def as_graph(items: Sequence[Any]) -> Any:
    return Graph(*_columns(items))


def as_rows(items: Sequence[Any]) -> Any:
    return Rows(_columns(items))


def with_more(items: Sequence[Any]) -> Any:
    """Return a batch with words, numbers, None and an inner dict beside its tensors."""
    words = [f"sample {int(i)}" for i, _, _ in items]
    return {
        **as_dict(items),
        "words": words,
        "nothing": None,
        "more": {"size": len(items), "pair": (words[0], 1.5)},
    }


BATCHES: dict[str, Callable[[Sequence[Any]], Any] | None] = {
    "list": None,
    "tuple": as_tuple,
    "dict": as_dict,
    "ordered": as_ordered,
    "defaultdict": as_default,
    "encoding": as_encoding,
    "named_tuple": as_named,
    "dataclass": as_record,
    "graph": as_graph,
    "list_subclass": as_rows,
    "with_more": with_more,
}


def unpack(batch: Any) -> tuple[list[int], Tensor, Tensor]:
    """Return indices, x [N, …] and targets [N] of a batch of any kind."""
    if isinstance(batch, (dict, UserDict)):
        index, x, y = batch["index"], batch["x"], batch["y"]
    elif hasattr(batch, "x"):
        index, x, y = batch.index, batch.x, batch.y
    else:
        index, x, y = batch[0], batch[1], batch[2]
    return torch.as_tensor(index).tolist(), x, y


def describe(value: Any) -> str:
    """Return a text with the types in a batch, its dtypes, shapes, layouts and other values."""
    if isinstance(value, Tensor):
        return f"{type(value).__name__}[{value.dtype}, {tuple(value.shape)}, {value.layout}]"
    name = type(value).__name__
    if isinstance(value, (dict, UserDict)):
        extra = f" of {value.default_factory}" if isinstance(value, defaultdict) else ""
        return f"{name}{extra}({', '.join(f'{k}: {describe(v)}' for k, v in value.items())})"
    if isinstance(value, (list, tuple)):
        return f"{name}({', '.join(describe(v) for v in value)})"
    if hasattr(value, "__dict__") and hasattr(value, "x"):
        return f"{name}({', '.join(f'{k}: {describe(v)}' for k, v in vars(value).items())})"
    return f"{name} {value!r}"

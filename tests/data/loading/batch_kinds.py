"""Batches of every kind: containers of torch, of Python, and of users."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from transformers import BatchEncoding
from transformers.utils import ModelOutput

META, CPU = torch.device("meta"), torch.device("cpu")


class Pair(NamedTuple):
    x: Any
    y: Any


class Derived(Pair):
    """Subclass whose constructor takes something else."""

    def __new__(cls, both: Any) -> Derived:
        made = super().__new__(cls, both, both)
        made.note = "kept"
        return made


class OwnList(list):
    def __init__(self, one: Any, other: Any) -> None:
        super().__init__([one, other])
        self.first = one


class OwnTuple(tuple):
    def __new__(cls, one: Any, other: Any) -> OwnTuple:
        return super().__new__(cls, (one, other))


class OwnDict(dict):
    def __init__(self, one: Any, *, scale: int) -> None:
        super().__init__(x=one)
        self.scale = scale


class Attributes(dict):
    """The well-known dict that is its own `__dict__`."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.__dict__ = self


class ByName(dict):
    __getattr__ = dict.__getitem__


@dataclasses.dataclass
class Plain:
    x: Any
    n: int = 3

    def __post_init__(self) -> None:
        self.doubled = self.x


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    n: int = dataclasses.field(default=4, init=False)


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    x: Any


@dataclasses.dataclass(slots=True)
class Slots:
    x: Any
    unset: Any = dataclasses.field(init=False)


@attrs.define
class Attrs:
    x: Any


@attrs.frozen
class AttrsFrozen:
    x: Any


@dataclasses.dataclass
class Output(ModelOutput):
    x: Any = None
    y: Any = None


class Graph:
    """Batch like PyTorch Geometric's data."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> Graph:
        return Graph(self.x.to(device))


def T() -> Tensor:
    return torch.arange(6.0).view(2, 3)


def kinds() -> dict[str, Any]:
    """Return batches of all kinds, with every tensor on the CPU."""
    x = T()
    return {
        "tensor": x,
        "list": [x, 1],
        "tuple": (x, "text", None),
        "dict": {"x": x, "name": ["a", "b"], "nothing": None},
        "nested": {"x": [x, ({"y": x},)]},
        "named tuple": Pair(x, 3),
        "derived named tuple": Derived(x),
        "own list": OwnList(x, T()),
        "own tuple": OwnTuple(x, T()),
        "own dict": OwnDict(x, scale=3),
        "dict of attributes": Attributes(x=x, n=3),
        "dict by name": ByName(x=x),
        "OrderedDict": collections.OrderedDict(x=x, y=T()),
        "defaultdict": collections.defaultdict(list, x=x),
        "UserDict": collections.UserDict(x=x),
        "UserList": collections.UserList([x]),
        "deque": collections.deque([x, 1], maxlen=5),
        "ChainMap": collections.ChainMap({"x": x}),
        "read-only": types.MappingProxyType({"x": x}),
        "BatchEncoding": BatchEncoding({"input_ids": x, "parts": [T(), T()]}),
        "model output": Output(x=x, y=(T(),)),
        "return type": torch.max(x, dim=0),
        "dataclass": Plain(x),
        "frozen dataclass": Frozen(x),
        "frozen dataclass with slots": FrozenSlots(x),
        "dataclass with slots": Slots(x),
        "attrs": Attrs(x),
        "frozen attrs": AttrsFrozen([x]),
        "namespace": types.SimpleNamespace(x=x, n=1),
        "set": {x},
        "frozenset": frozenset([x, "text"]),
        "object with to": Graph(x),
        "objects with to": [Graph(x), {"x": Graph(T())}],
        "packed sequence": pack_sequence([torch.ones(3), torch.ones(2)]),
        "sparse": x.to_sparse(),
        "sparse rows": x.to_sparse_csr(),
    }

"""Batches of every kind keep their type and reach the device whole.

They are not touched when they are there already.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from transformers import BatchEncoding
from transformers.utils import ModelOutput

from gallery_lib.data.loading.device_loader import to_device
from gallery_lib.data.loading.nesting import tensors_in

META, CPU = torch.device("meta"), torch.device("cpu")


class Pair(NamedTuple):
    x: Any
    y: Any


class OwnList(list):
    def __init__(self, one: Any, other: Any) -> None:
        super().__init__([one, other])


class OwnDict(dict):
    def __init__(self, one: Any, *, scale: int) -> None:
        super().__init__(x=one)
        self.scale = scale


class ByName(dict):
    __getattr__ = dict.__getitem__


@dataclasses.dataclass
class Plain:
    x: Any
    n: int = 3

    def __post_init__(self) -> None:
        self.doubled = self.x


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    n: int = dataclasses.field(default=4, init=False)


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
        "nested": {"x": [x, ({"y": x},)], "name": ["a", "b"], "nothing": None},
        "named tuple": Pair(x, 3),
        "own list": OwnList(x, T()),
        "own dict": OwnDict(x, scale=3),
        "dict by name": ByName(x=x),
        "OrderedDict": collections.OrderedDict(x=x, y=T()),
        "defaultdict": collections.defaultdict(list, x=x),
        "UserDict": collections.UserDict(x=x),
        "BatchEncoding": BatchEncoding({"input_ids": x, "parts": [T(), T()]}),
        "model output": Output(x=x, y=(T(),)),
        "return type": torch.max(x, dim=0),
        "dataclass": Plain(x),
        "frozen dataclass with slots": Frozen(x),
        "object with to": Graph(x),
        "objects with to": [Graph(x), {"x": Graph(T())}],
        "sparse": [x.to_sparse(), x.to_sparse_csr()],
    }


@pytest.mark.parametrize("kind", kinds())
def test_a_batch_keeps_its_type_and_reaches_the_device(kind: str) -> None:
    batch = kinds()[kind]
    before = list(tensors_in(batch))
    moved = to_device(batch, META)
    assert type(moved) is type(batch) and len(list(tensors_in(moved))) == len(before) > 0
    assert {tensor.device for tensor in tensors_in(moved)} == {META}
    assert [tensor.shape for tensor in tensors_in(moved)] == [tensor.shape for tensor in before]
    assert all(tensor.device == CPU for tensor in before)
    assert to_device(batch, CPU) is batch  # what is there already is the very same object
    # The caller's batch stays as it was.
    assert all(one is other for one, other in zip(tensors_in(batch), before, strict=True))


def test_a_packed_sequence_is_moved_by_its_own_method() -> None:
    moved = to_device(pack_sequence([torch.ones(3), torch.ones(2)]), META)
    assert moved.data.device == META and moved.batch_sizes.device == CPU


@pytest.mark.parametrize(
    "batch",
    [None, 3, "text", b"bytes", np.ones(2), [], {}, (), object(), Plain, torch.Size([2])],
)
def test_what_has_no_tensors_stays(batch: Any) -> None:
    assert to_device(batch, META) is batch


def test_what_belongs_to_a_container_beside_its_members_stays_with_it() -> None:
    moved = {kind: to_device(batch, META) for kind, batch in kinds().items()}
    assert moved["defaultdict"]["new"] == [] and moved["own dict"].scale == 3
    assert moved["dict by name"].x.device == META
    assert moved["dataclass"].doubled is moved["dataclass"].x and moved["dataclass"].n == 3
    assert moved["frozen dataclass with slots"].n == 4
    output = moved["model output"]
    assert output.x is output["x"] and output.y[0].device == META
    assert moved["BatchEncoding"].input_ids.device == META
    assert (moved["tuple"][1:], moved["nested"]["name"]) == (("text", None), ["a", "b"])
    assert moved["return type"].values.device == META


def test_what_is_in_a_batch_twice_is_copied_once() -> None:
    x, inner = T(), [T()]
    moved = to_device({"a": x, "b": [x], "c": inner, "d": inner}, META)
    assert moved["a"] is moved["b"][0] and moved["c"] is moved["d"]


def test_nested_tensors_and_subclasses_stay_what_they_are() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert to_device([ragged], CPU)[0] is ragged
    moved = to_device([ragged], META)[0]
    assert moved.is_nested and moved.device == META

    class Own(Tensor):
        pass

    own = T().as_subclass(Own)
    assert type(to_device((own,), META)[0]) is Own


def test_an_object_is_moved_as_its_own_method_says() -> None:
    calls = []

    class Both:
        def __init__(self) -> None:
            self.x = T()

        def to(self, device: torch.device, non_blocking: bool = False) -> Both:
            calls.append((device, non_blocking))
            return self

    to_device([Both()], META)
    assert calls == [(META, True)]

    class Broken(Both):
        def to(self, device: torch.device) -> Both:  # type: ignore[override]
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        to_device(Broken(), META)

    class Length:
        """A physical quantity, whose `to` takes something else."""

        def to(self, unit: str) -> float:
            return {"m": 1.0, "km": 0.001}[unit] if isinstance(unit, str) else int(unit)  # type: ignore[call-overload]

    batch = [Length(), T()]
    assert to_device(batch, META)[0] is batch[0]


def test_tensors_come_in_order() -> None:
    tensors = [torch.tensor(float(number)) for number in range(5)]
    batch = {
        "a": tensors[0],
        "b": [tensors[1], Frozen(tensors[2])],
        "c": (Graph(tensors[3]), BatchEncoding({"x": tensors[4]})),
    }
    assert [int(tensor) for tensor in tensors_in(batch)] == [0, 1, 2, 3, 4]

"""On one process a DeviceLoader behaves as the caller's loader, with its batches on the device.

Batches of every kind keep their type, and are not touched when they are there already. What a
device adds is tested in tests/fake_gpu/inside_loader.py.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
import pickle
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from refusal import refused
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from transformers import BatchEncoding
from transformers.utils import ModelOutput

from gallery_lib.config import Loader
from gallery_lib.data.loading.device_loader import DeviceLoader, to_device
from gallery_lib.data.loading.nesting import tensors_in
from gallery_lib.data.loading.progress import EarlyWorkers
from gallery_lib.data.loading.sharding import may_refill

CPU, META = torch.device("cpu"), torch.device("meta")
DATA = list(range(20))


class Broken(list[int]):
    def __getitem__(self, index: Any) -> Any:
        if index == 7:
            raise FileNotFoundError(f"sample {index}")
        return super().__getitem__(index)


def ours(loader: Any, device: torch.device = CPU, **options: Any) -> DeviceLoader:
    return DeviceLoader(loader, device, torch.contiguous_format, Loader(nice=0, **options))


class Doubled(DataLoader[Any]):
    note = "of the class"

    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


LOADERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: DataLoader(DATA, 3),
    "shuffled": lambda: DataLoader(DATA, 3, shuffle=True),
    "shuffled, workers": lambda: DataLoader(DATA, 3, shuffle=True, num_workers=1),
    "weighted": lambda: DataLoader(DATA, 3, sampler=WeightedRandomSampler([1.0] * 20, 12)),
    "with replacement": lambda: DataLoader(
        DATA, 3, sampler=RandomSampler(DATA, replacement=True, num_samples=33)
    ),
    "batch_sampler": lambda: DataLoader(DATA, batch_sampler=[[1, 2], [3]]),
    "no collation": lambda: DataLoader(torch.arange(6), batch_size=None),
    "subclass": lambda: Doubled(DATA, 3, shuffle=True),
    "DistributedSampler": lambda: DataLoader(
        DATA, 3, sampler=DistributedSampler(DATA, num_replicas=2, rank=1)
    ),
    "generator": lambda: (torch.full((1,), number) for number in range(3)),
    "endless": lambda: (torch.full((1,), number) for number in itertools.count()),
}


def passes(loader: Any) -> list[Any]:
    """Return the batches of two passes, with random numbers drawn before and during each."""
    torch.manual_seed(3)
    random.seed(3)
    seen: list[Any] = []
    for _ in range(2):
        iterator = iter(loader)
        seen.append(torch.rand(1).item())
        seen += [(b.tolist(), torch.rand(1).item()) for b in itertools.islice(iterator, 30)]
    return seen


@pytest.mark.parametrize("kind", LOADERS)
def test_order_and_random_numbers_are_those_of_plain_pytorch(kind: str) -> None:
    assert passes(ours(LOADERS[kind]())) == passes(LOADERS[kind]())


def test_attributes_are_read_from_the_loader_and_set_on_it() -> None:
    loader = Doubled(DATA, 3, shuffle=True, drop_last=True, collate_fn=list)
    found = ours(loader)
    names = {name for name in vars(loader) if not name.startswith("_")}
    assert {"batch_size", "sampler", "batch_sampler", "collate_fn", "dataset"} <= names
    for name in (*names, "multiprocessing_context"):
        assert getattr(found, name) is getattr(loader, name), name
    with pytest.raises(AttributeError, match="'Doubled' object has no attribute 'batchsize'"):
        found.batchsize  # noqa: B018
    found.note, found.num_workers = "mine", 1
    assert (loader.note, loader.num_workers) == ("mine", 1)
    with pytest.raises(ValueError, match="batch_size attribute should not be set after"):
        found.batch_size = 4
    found.memory_format = torch.channels_last
    assert not hasattr(loader, "memory_format")


def test_length_is_the_loaders_and_iterators_do_not_know_each_other() -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(ours(iter(DATA)))
    found = ours(DataLoader(DATA, 4))
    assert len(found) == 5
    one, other = iter(found), iter(found)
    taken = [next(iterator).tolist() for iterator in (one, one, other)]
    assert taken == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert len(list(one)) == 3 and len(list(other)) == 4


@pytest.mark.parametrize("nice", [0, 5])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_keeps_its_type_and_the_pass_goes_on_behind_it(workers: int, nice: int) -> None:
    loader = DataLoader(Broken(DATA), 5, num_workers=workers)
    batches = iter(DeviceLoader(loader, CPU, torch.contiguous_format, Loader(nice=nice)))
    assert next(batches).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(FileNotFoundError, match="sample 7"):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]


class Counting(TensorDataset):
    def __init__(self) -> None:
        super().__init__(torch.arange(4))
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


@pytest.mark.parametrize(
    "copied",
    [lambda it: it, copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))],
)
def test_epochs_are_told_by_the_caller_alone(copied: Callable[[Any], Any]) -> None:
    found = copied(ours(DataLoader(Counting(), 2)))
    for _ in range(2):
        assert [batch.tolist() for (batch,) in found] == [[0, 1], [2, 3]]
    assert (found.batch_size, found.dataset.epochs) == (2, [])
    found.dataset.set_epoch(7)
    found.set_epoch(8)
    list(found)
    assert found.dataset.epochs == [7, 8]


def test_what_came_back_may_be_given_again() -> None:
    again = ours(ours(DataLoader(Counting())))
    assert len(list(again)) == 4 and not isinstance(again.loader, DeviceLoader)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("made", [lambda: DataLoader(DATA), lambda: ours(DataLoader(DATA))])
def test_loaders_in_a_list_are_refused(kind: Any, made: Callable[[], Any]) -> None:
    with refused("loader", f"a {kind.__name__} of loaders"):
        ours(kind([made(), made()]))


@pytest.mark.parametrize(
    ("loader", "refills"),
    [
        (DataLoader(DATA, 2), False),
        (DataLoader(DATA, None, num_workers=1), False),
        (DataLoader(DATA, None), True),
        (Doubled(DATA, 2), True),
        (EarlyWorkers(DATA, 2), False),
        ([torch.ones(1)], True),
    ],
)
def test_what_may_fill_its_memory_again_is_known(loader: Any, refills: bool) -> None:
    assert may_refill(loader) is refills


def test_a_batch_may_be_anything_and_ends_nothing() -> None:
    given = [None, (), 0, torch.ones(1), "", {}, None]
    assert [type(batch) for batch in ours(given)] == [type(batch) for batch in given]


def of_kind(kind: type[DataLoader[Any]], workers: int) -> DataLoader[Any]:
    return kind(
        DATA,
        4,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(3),
    )


def numbers_of(loader: DataLoader[Any]) -> list[list[int]]:
    return [[number for numbers in loader for number in numbers.tolist()] for _ in range(3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_workers_that_begin_early_come_in_the_same_order(workers: int) -> None:
    early = of_kind(EarlyWorkers, workers)
    assert isinstance(early, EarlyWorkers)
    early.begin()
    early.begin()  # once is enough
    assert all(worker.is_alive() for worker in getattr(early._iterator, "_workers", ()))
    torch.rand(5)  # a model is built meanwhile
    found = numbers_of(early)
    for kind in (DataLoader, EarlyWorkers):
        assert found == numbers_of(of_kind(kind, workers))
    assert found[0] != found[1] and sorted(found[2]) == DATA


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


class Graph:  # like PyTorch Geometric's data
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
    "batch", [None, 3, "text", b"bytes", np.ones(2), [], {}, (), object(), Plain, torch.Size([2])]
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
    class Asynchronous(Graph):
        def to(self, device: torch.device, non_blocking: bool = False) -> Graph:
            raise RuntimeError(f"{device}, {non_blocking}")

    class Synchronous(Graph):
        def to(self, device: torch.device) -> Graph:
            raise TypeError("mine")

    class Length:  # a physical quantity, whose `to` takes something else
        def to(self, unit: str) -> float:
            return {"m": 1.0, "km": 0.001}[unit] if isinstance(unit, str) else int(unit)  # type: ignore[call-overload]

    for kind, words in ((Asynchronous, "meta, True"), (Synchronous, "mine")):
        with pytest.raises((RuntimeError, TypeError), match=words):
            to_device([kind(T())], META)
    batch = [Length(), T()]
    assert to_device(batch, META)[0] is batch[0]

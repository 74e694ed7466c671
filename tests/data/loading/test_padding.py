"""Padding to buckets: few shapes, nothing else changed, and clear words about the impossible."""

import dataclasses
from collections import defaultdict, namedtuple

import pytest
import torch
from refusal import refused
from torch.utils.data import DataLoader
from transformers import BatchEncoding

from gallery_lib.config import Loader
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.data.loading.length_buckets import pad_to_bucket

BUCKETS = (8, 4, 16)


@pytest.mark.parametrize(("length", "padded"), [(1, 4), (4, 4), (5, 8), (16, 16), (17, 17)])
def test_a_batch_gets_the_smallest_bucket_that_holds_it(length: int, padded: int) -> None:
    ids = torch.arange(1, 2 * length + 1).reshape(2, length)
    batch = pad_to_bucket({"ids": ids, "labels": ids, "n": 3}, BUCKETS, {"ids": 0, "labels": -100})
    assert batch["ids"].shape == batch["labels"].shape == (2, padded)
    assert torch.equal(batch["ids"][:, :length], ids)
    assert (batch["ids"][:, length:] == 0).all() and (batch["labels"][:, length:] == -100).all()
    assert batch["n"] == 3


def test_parts_of_different_length_share_the_bucket_of_the_longest() -> None:
    batch = pad_to_bucket([torch.ones(2, 5, 3), torch.ones(2, 2)], BUCKETS, {0: 0.5, 1: 7})
    assert [tuple(part.shape) for part in batch] == [(2, 8, 3), (2, 8)]
    assert (batch[0][:, 5:] == 0.5).all()


def test_named_tuples_and_tuples_keep_their_type() -> None:
    Pair = namedtuple("Pair", "x y")
    assert type(pad_to_bucket(Pair(torch.ones(1, 3), torch.ones(1)), BUCKETS, {0: 0})) is Pair
    assert type(pad_to_bucket((torch.ones(1, 3), torch.ones(1)), BUCKETS, {0: 0})) is tuple


def test_what_is_not_there_or_has_no_length_is_named() -> None:
    with refused("pad_values", "'idz'", "'ids'"):
        pad_to_bucket({"ids": torch.ones(1, 3)}, BUCKETS, {"idz": 0})
    with refused("pad_values", "'labels'", "length"):
        pad_to_bucket(
            {"ids": torch.ones(1, 3), "labels": torch.ones(3)}, BUCKETS, {"ids": 0, "labels": 0}
        )


def test_a_loader_of_variable_length_yields_only_the_shapes_of_the_buckets() -> None:
    items = [torch.ones(length) for length in range(1, 17)]
    loader = DataLoader(
        items,
        batch_size=2,
        collate_fn=lambda group: {"x": torch.nn.utils.rnn.pad_sequence(group, batch_first=True)},
    )  # type: ignore[arg-type]
    options = Loader(buckets=BUCKETS, pad_values={"x": 0.0})
    shapes = {
        tuple(batch["x"].shape)
        for batch in DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format, options)
    }
    assert shapes == {(2, 4), (2, 8), (2, 16)}


def test_what_pads_nothing_is_refused() -> None:
    for options, missing in (
        (Loader(buckets=BUCKETS), "pad_values"),
        (Loader(pad_values={"x": 0.0}), "buckets"),
    ):
        with refused(missing, f"{missing} is not"):
            DeviceLoader([], torch.device("cpu"), torch.contiguous_format, options)


def test_a_batch_of_any_kind_keeps_its_type() -> None:
    @dataclasses.dataclass(frozen=True)
    class Batch:
        x: torch.Tensor
        name: str = "kept"

    class Own(list):  # type: ignore[type-arg]
        def __init__(self, one: torch.Tensor, other: int) -> None:
            super().__init__([one, other])

    three = torch.ones(1, 3)
    padded = pad_to_bucket(Batch(three), BUCKETS, {"x": 0})
    assert isinstance(padded, Batch) and padded.x.shape == (1, 4) and padded.name == "kept"
    own = pad_to_bucket(Own(three, 5), BUCKETS, {0: 0})
    assert type(own) is Own and own[0].shape == (1, 4) and own[1] == 5
    encoding = pad_to_bucket(BatchEncoding({"ids": three}), BUCKETS, {"ids": 0})
    assert type(encoding) is BatchEncoding and encoding.ids.shape == (1, 4)
    counted = pad_to_bucket(defaultdict(list, x=three), BUCKETS, {"x": 0})
    assert counted["new"] == [] and counted["x"].shape == (1, 4)


def test_a_batch_that_fits_is_not_touched() -> None:
    batch = {"x": torch.ones(1, 4), "y": torch.ones(1, 4)}
    assert pad_to_bucket(batch, BUCKETS, {"x": 0, "y": 1}) is batch
    assert pad_to_bucket(None, BUCKETS, {"x": 0}) is None


def test_a_batch_without_parts_is_refused() -> None:
    with refused("pad_values", "'x'", "Tensor"):
        pad_to_bucket(torch.ones(1, 3), BUCKETS, {"x": 0})

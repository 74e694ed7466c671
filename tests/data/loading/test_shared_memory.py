"""Batches from workers are torch's, and lie in memory that is used again.

They never change while anything refers to them.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, Dataset

from gallery_lib.data.loading import shared_memory
from gallery_lib.data.loading.shared_memory import collate


class Numbered(Dataset[Any]):
    """Data set whose item i has an image full of i, a mask [3] of i as int16, i, and i / 2."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        image = torch.full((5, 7), index, dtype=torch.uint8)
        return image, torch.full((3,), index, dtype=torch.int16), index, index / 2


class Shaped(Numbered):
    """Data set that only torch's own collate function takes: `form` makes an item of an index."""

    def __init__(self, form: Any) -> None:
        self.form = form

    def __getitem__(self, index: int) -> Any:
        return self.form(index)


def loader(
    data: Dataset[Any] | None = None, batch_size: int = 8, workers: int = 2, **options: Any
) -> DataLoader[Any]:
    return DataLoader(
        data or Numbered(), batch_size, num_workers=workers, collate_fn=collate, **options
    )


@pytest.fixture(autouse=True)
def nothing_mapped() -> Iterator[None]:
    shared_memory._mapped.clear()
    yield
    shared_memory._mapped.clear()


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_batches_are_those_of_torch_s_collate_function(start: str) -> None:
    expected = list(DataLoader(Numbered(), 24))  # the last one has 8 items
    for found in (
        list(loader(batch_size=24, workers=0)),
        list(loader(batch_size=24, multiprocessing_context=start)),
    ):
        assert len(found) == len(expected) == 9
        for mine, theirs in zip(found, expected, strict=True):
            assert type(mine) is type(theirs) and len(mine) == 4
            for part, other in zip(mine, theirs, strict=True):
                assert (
                    part.dtype == other.dtype and part.is_contiguous() and torch.equal(part, other)
                )


def test_a_loop_that_drops_its_batches_stays_in_the_same_memory() -> None:
    addresses = [images.data_ptr() for images, *_ in loader(batch_size=4, workers=1)]
    # Three in flight, one in hand, one more at the change.
    assert len(addresses) == 50 and len(set(addresses)) <= 5


def test_batches_that_are_kept_stay_what_they_are() -> None:
    """More of them than a worker has blocks, and views of them as well."""
    kept = [(images[1:], numbers) for images, _, numbers, _ in loader(batch_size=2)]
    assert len(kept) == 100 > 2 * shared_memory._BLOCKS
    gc.collect()
    assert all(bool((images == numbers[1]).all()) for images, numbers in kept)


def test_persistent_workers_go_on_after_a_pass_that_was_left() -> None:
    data = loader(batch_size=4, persistent_workers=True)
    for _ in range(4 * shared_memory._BLOCKS):
        next(iter(data))
    for number, (images, *_) in enumerate(data):
        assert images[:, 0, 0].tolist() == list(range(4 * number, 4 * number + 4))
        if number == 5:
            addresses = {worker: len(blocks) for worker, blocks in shared_memory._mapped.items()}
    assert len(addresses) == 2 and max(addresses.values()) < shared_memory._BLOCKS


def test_batches_that_grow_get_larger_blocks() -> None:
    ends = [n * (n + 1) // 2 for n in range(20)]
    sampler = [list(range(start, stop)) for start, stop in itertools.pairwise(ends)]
    sizes = []
    for images, _, numbers, _ in DataLoader(
        Numbered(), batch_sampler=sampler, num_workers=1, collate_fn=collate
    ):
        assert torch.equal(images[:, 0, 0].long(), numbers)
        sizes.append(len(images))
    assert sizes == list(range(1, 20))
    assert all(len(blocks) <= shared_memory._BLOCKS for blocks in shared_memory._mapped.values())


@pytest.mark.parametrize(
    "form",
    [
        lambda index: {"x": torch.full((2,), index)},
        lambda index: torch.full((2,), index),
        lambda index: (torch.full((2,), index), f"name {index}"),
        lambda index: (index, index / 3),
        lambda index: (torch.full((2,), index), (index, index)),
        lambda index: (torch.zeros(2, 0), index),
        lambda index: (torch.tensor(index), torch.tensor(index) > 3),
    ],
)
def test_items_of_other_kinds_are_collated_as_torch_does_it(form: Any) -> None:
    data = Shaped(form)
    expected = list(DataLoader(data, 32))
    found = list(loader(data, 32, workers=1))
    assert str(found) == str(expected)  # values, nesting, dtypes


@pytest.mark.slow
def test_memory_of_ended_workers_is_let_go() -> None:
    for _ in range(3):
        for batch in loader():
            assert batch and len(shared_memory._mapped) <= 2  # of this pass alone
    assert shared_memory._mapped
    assert int(batch[0][0, 0, 0]) == 192  # still there, its worker is not
    del batch
    assert not shared_memory._mapped


@pytest.mark.slow
def test_a_batch_may_end_while_torch_traces() -> None:
    """Nothing of torch runs when a batch ends.

    A mode that looks at every operation would refuse it, and the block would be lost.
    """
    # Nothing is left for which a block could be taken.
    all_at_once = loader(batch_size=len(Numbered()), workers=1, persistent_workers=True)
    iterator = iter(all_at_once)
    batch = next(iterator)
    ((block,),) = (blocks.values() for blocks in shared_memory._mapped.values())
    assert batch and block[0] == 1
    with FakeTensorMode():
        del batch
    assert block[0] == 0


@pytest.mark.slow
def test_a_forked_process_does_not_give_blocks_back() -> None:
    """Its copies of batches end; those of the main process go on."""
    data = loader(batch_size=4, workers=1, persistent_workers=True)
    iterator = iter(data)
    batch = next(iterator)
    (blocks,) = shared_memory._mapped.values()
    block = next(iter(blocks.values()))
    child = os.fork()
    if child == 0:
        del batch
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert block[0] == 1
    for _ in range(20):
        next(iterator)
    assert batch[0][:, 0, 0].tolist() == [0, 1, 2, 3]

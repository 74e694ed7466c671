"""Data-loading processes give way, end, and pass batches in memory that is used again."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import process
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.checkpoint import Checkpoint
from gallery_lib.config import Config, Loader
from gallery_lib.data.loading import shared_memory, workers
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.data.loading.shared_memory import collate


def niceness(loader: DataLoader) -> set[int]:
    return {os.getpriority(os.PRIO_PROCESS, worker.pid) for worker in loader._iterator._workers}


def plain_loader(workers: int = 2, samples: int = 16) -> DataLoader:
    return DataLoader(
        TensorDataset(torch.arange(samples)),
        batch_size=2,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def of_accelerate(
    asked: int | None, workers: int = 2
) -> tuple[DataLoader, torch.nn.Module, list[int]]:
    config = Config.plain() if asked is None else Config(loader=Loader(nice=asked))
    config.compiler.enabled = False
    loader = plain_loader(workers)
    model, batches = accelerate(nn.Linear(1, 1), loader, config)
    return loader, model, [int(sample) for (batch,) in batches for sample in batch]


@pytest.mark.parametrize(("asked", "expected"), [(19, 19), (5, 5), (None, 0)])
def test_the_processes_have_the_niceness_that_was_asked_for(
    asked: int | None, expected: int
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    loader, model, samples = of_accelerate(asked)
    assert niceness(loader) == {max(expected, own)} and samples == list(range(16))
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    assert ("niceness" in techniques(model).get("loader", "")) is bool(expected)


def test_other_loaders_are_as_they_were() -> None:
    _, model, samples = of_accelerate(19, workers=0)
    assert samples == list(range(16)) and "loader" not in techniques(model)
    loader = plain_loader()
    assert len(list(DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format))) == 8
    assert niceness(loader) == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_a_batch_that_cannot_be_pickled_raises_its_error() -> None:
    loader = DataLoader(
        torch.arange(64),
        num_workers=1,
        collate_fn=lambda items: lambda: items,
        worker_init_fn=workers.begin,
        timeout=60,
    )
    with pytest.raises((AttributeError, TypeError), match=r"lambda|pickle"):
        next(iter(loader))


def test_a_long_temporary_folder_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setitem(process.current_process()._config, "tempdir", None)  # type: ignore[attr-defined]
    _, _, samples = of_accelerate(19)
    assert samples == list(range(16)) and not list(long.iterdir())


@pytest.fixture
def nothing_is_collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def with_checkpoints(folder: Path) -> None:
    model, loader = nn.Linear(4, 1), plain_loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = Checkpoint(folder, model=model, optimizer=optimizer, loader=loader, every=2)
    for _ in loader:
        checkpoint.step()
    checkpoint.close()
    assert checkpoint.epoch == 1
    del checkpoint
    assert len(list(loader)) == 8  # it goes on as it was


def accelerated(folder: Path) -> None:
    config = Config()
    config.compiler.enabled = False
    _, loader = accelerate(nn.Linear(4, 1), plain_loader(), config=config)
    next(iter(loader))


@pytest.mark.usefixtures("nothing_is_collected")
@pytest.mark.parametrize("use", [with_checkpoints, accelerated])
def test_workers_that_stay_end_with_the_last_user_of_their_loader(
    use: Callable[[Path], None], tmp_path: Path
) -> None:
    before = set(psutil.Process().children())
    use(tmp_path)
    assert set(psutil.Process().children()) <= before


class Numbered(Dataset[Any]):  # item i: an image full of i, a mask [3] of i as int16, i, i / 2
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        image = torch.full((5, 7), index, dtype=torch.uint8)
        return image, torch.full((3,), index, dtype=torch.int16), index, index / 2


class Shaped(Numbered):
    # only torch's own collate function takes these: `form` makes an item of an index
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
    options: dict[str, Any] = {"multiprocessing_context": start}
    for found in (loader(batch_size=24, workers=0), loader(batch_size=24, **options)):
        for mine, theirs in zip(found, expected, strict=True):
            assert type(mine) is type(theirs) and all(part.is_contiguous() for part in mine)
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_a_loop_that_drops_its_batches_stays_in_the_same_memory() -> None:
    addresses = [images.data_ptr() for images, *_ in loader(batch_size=4, workers=1)]
    # Three in flight, one in hand, one more at the change.
    assert len(addresses) == 50 and len(set(addresses)) <= 5


def test_batches_that_are_kept_stay_what_they_are() -> None:
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
    sampler = [list(range(n, 2 * n)) for n in range(1, 20)]
    found = DataLoader(Numbered(), batch_sampler=sampler, num_workers=1, collate_fn=collate)
    for expected, (images, *_) in zip(sampler, found, strict=True):
        assert images[:, 0, 0].tolist() == expected
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
    # A mode that looks at every operation would refuse it, and the block would be lost.
    # Nothing is left for which a block could be taken.
    iterator = iter(loader(batch_size=len(Numbered()), workers=1, persistent_workers=True))
    batch = next(iterator)
    ((block,),) = (blocks.values() for blocks in shared_memory._mapped.values())
    assert batch and block[0] == 1
    with FakeTensorMode():
        del batch
    assert block[0] == 0


@pytest.mark.slow
def test_a_forked_process_does_not_give_blocks_back() -> None:
    iterator = iter(loader(batch_size=4, workers=1, persistent_workers=True))
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


def test_a_late_batch_is_told_of_once_and_others_are_not():
    told = []

    def batches():
        for number in range(3):
            time.sleep(0.6 if number == 1 else 0.0)
            yield number

    passing = workers.watched(batches(), 0.2, told.append)
    assert next(passing) == 0
    time.sleep(0.4)  # the training takes its time
    assert not told
    assert list(passing) == [1, 2]
    assert len(told) == 1 and "no batch has come for 0.2 s" in told[0]

"""Memory of batches is used again, but never while anything still refers to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from gallery_lib.data.images import image_folder

SHAPE = (4, 3, 32, 32)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    image_folder._free.clear()
    yield
    image_folder._free.clear()


def test_memory_of_a_batch_that_has_ended_is_used_again() -> None:
    """A loop that drops each batch before the next goes on in the same memory."""
    first = image_folder.empty(SHAPE)
    assert first.dtype == torch.float32 and first.shape == SHAPE and first.is_contiguous()
    assert first.data_ptr() % 64 == 0
    address = first.data_ptr()
    del first
    assert image_folder.empty(SHAPE).data_ptr() == address


def test_memory_with_a_reference_is_left_alone() -> None:
    """A kept view, a detached alias and what a graph saved all hold their memory."""
    batch = image_folder.empty(SHAPE).fill_(1.0)
    view = batch[1:]
    alias = batch.detach()
    weight = torch.ones(32, requires_grad=True)
    product = (batch * weight).sum()  # saves the batch
    del batch
    for _ in range(3):
        image_folder.empty(SHAPE).fill_(2.0)
    assert view.eq(1.0).all() and alias.eq(1.0).all()
    del view, alias
    for _ in range(3):
        image_folder.empty(SHAPE).fill_(2.0)
    product.backward()
    assert weight.grad is not None and weight.grad.eq(4 * 3 * 32).all()


def test_threads_never_share_memory() -> None:
    """Each thread finds its own values in a tensor that it has filled.

    It does not matter what other threads take and drop.
    """
    wrong = []

    def work(value: float) -> None:
        for _ in range(300):
            tensor = image_folder.empty((64,)).fill_(value)
            if not tensor.eq(value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

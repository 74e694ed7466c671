"""A range of addresses that maps the same memory again and again."""

from __future__ import annotations

import gc
import mmap
import sys
from pathlib import Path

import pytest
import torch

from gallery_lib.measure.replay.repeated_memory import repeated

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere it is ordinary memory; run the tests on Linux"
)
PIECE = 4 * mmap.PAGESIZE


def mappings() -> int:
    return sum(
        "memfd:repeated" in line for line in Path("/proc/self/maps").read_text().splitlines()
    )


def test_what_lies_a_piece_apart_is_the_same() -> None:
    memory = repeated(2 * PIECE + 5, PIECE)
    assert memory.shape == (2 * PIECE + 5,)
    memory[3], memory[PIECE + 4] = 1, 2
    for begin in (0, PIECE):
        assert memory[begin + 3 : begin + 5].tolist() == [1, 2]
    memory[-1] = 3
    assert memory[4] == memory[PIECE + 4] == 3
    assert memory.view(-1)[: 2 * PIECE].view(torch.float32).numel() == PIECE // 2


def test_it_is_given_back_with_the_last_tensor_that_lies_in_it() -> None:
    memory = repeated(3 * PIECE, PIECE)
    part = memory[PIECE:].view(torch.float32)
    del memory
    gc.collect()
    assert mappings() == 3
    part.fill_(1.0)
    del part
    gc.collect()
    assert mappings() == 0


def test_what_is_no_longer_than_a_piece_is_ordinary_memory() -> None:
    memory = repeated(PIECE, PIECE).zero_()
    memory[0] = 1
    assert memory.sum() == 1 and mappings() == 0


def test_what_the_system_does_not_have_is_an_error_and_leaves_nothing() -> None:
    with pytest.raises(OSError, match="MiB of addresses could not be had"):
        repeated(2**62, 2**61)
    assert mappings() == 0

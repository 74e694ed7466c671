"""`gallery::dropout_mask`: Philox's published value, C++ against plain torch, the share kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gallery_lib.kernels import dropout_mask

SCALE = torch.tensor(4.6566127342e-10)
FIRST_WORD_OF_ZEROS = 0x6627E8D5
"""Philox4x32-10's first word for counter 0 and key 0, from the known answers of Random123."""


def drawn(seed: int, size: list[int], threshold: float) -> torch.Tensor:
    return torch.ops.gallery.dropout_mask(torch.tensor([7, seed]), 1, size, threshold)


def test_the_first_number_is_the_published_one():
    number = float((torch.tensor(FIRST_WORD_OF_ZEROS) & 0x7FFFFFFF).float() * SCALE)
    below = float(torch.nextafter(torch.tensor(number), torch.tensor(0.0)))
    for function in (drawn, dropout_mask.reference):
        assert not function(0, [1], number).item()
        assert function(0, [1], below).item()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    size=st.lists(st.integers(0, 23), min_size=0, max_size=3),
    threshold=st.sampled_from([0.0, 0.1, 0.10009765625, 0.5, 0.999, 1.0, -1.0, 2.0]),
    threads=st.integers(1, 3),
)
def test_cpp_draws_what_plain_torch_draws(seed, size, threshold, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = drawn(seed, size, threshold)
    finally:
        torch.set_num_threads(before)
    assert ours.dtype is torch.bool
    assert torch.equal(ours, dropout_mask.reference(seed, size, threshold))


def test_without_a_compiler_plain_torch_draws_the_same(monkeypatch):
    ours = drawn(2**40 + 3, [4, 1001], 0.3)
    monkeypatch.setattr(dropout_mask, "available", lambda: False)
    assert torch.equal(drawn(2**40 + 3, [4, 1001], 0.3), ours)


@pytest.mark.parametrize("threshold", [0.1, 0.5])
def test_the_share_kept_and_its_neighbours_are_as_chance_has_them(threshold):
    kept = drawn(12345, [1000, 1000], threshold).float()
    deviation = (threshold * (1 - threshold) / kept.numel()) ** 0.5
    assert abs(float(kept.mean()) - (1 - threshold)) < 5 * deviation
    both = float((kept[:, 1:] * kept[:, :-1]).mean())
    assert abs(both - (1 - threshold) ** 2) < 10 * deviation

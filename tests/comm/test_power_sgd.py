"""PowerSGD on gradients that are no matrices, in a group of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from gallery_lib.comm.wire_formats import PowerSGD


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_vectors_and_single_values_are_sent_as_they_are(group: None) -> None:
    """A temperature that is learned, say, is a parameter without any dimension."""
    gradients = [torch.tensor(3.0), torch.arange(5.0), torch.ones(1, 7)]
    expected = [gradient.clone() for gradient in gradients]
    PowerSGD(None, rank=1).average_(gradients, ["temperature", "bias", "row"])
    assert all(torch.equal(got, wanted) for got, wanted in zip(gradients, expected, strict=True))

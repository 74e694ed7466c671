"""Data loaders of many kinds, divided over the ranks, and what every rank gets of them."""

from __future__ import annotations

import itertools
import random
import warnings
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler

from gallery_lib.config import Loader
from gallery_lib.data.loading.device_loader import DeviceLoader
from on_ranks.loader_kinds import DATA, LOADERS, Halved, rank


def _seed() -> None:
    torch.manual_seed(100 + rank())
    random.seed(rank())
    np.random.seed(rank())


def _numbers(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def batches(
    kind: str, passes: int = 1, most: int = 100, shard: str = "auto", **options: Any
) -> dict[str, Any]:
    """Return the batches of some passes on this rank as lists, the warnings, and the error.

    The ranks are seeded differently.
    """
    result: dict[str, Any] = {"passes": [], "said": [], "error": ""}
    _seed()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            loader = DeviceLoader(
                LOADERS[kind](**options),
                torch.device("cpu"),
                torch.contiguous_format,
                Loader(nice=0, shard=shard),
            )
            for _ in range(passes):
                result["passes"].append(
                    [_numbers(batch) for batch in itertools.islice(loader, most)]
                )
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
    result["said"] = [
        str(warning.message) for warning in said if "accelerate()" in str(warning.message)
    ]
    return result


def batches_with(kind: str, passes: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return the batches of a loader that is made with `options`."""
    return batches(kind, passes, **options)


def plain(kind: str, passes: int = 1, most: int = 100, **options: Any) -> list[list[Any]]:
    """Return the batches of the loader itself, not divided."""
    _seed()
    loader = LOADERS[kind](**options)
    return [[_numbers(batch) for batch in itertools.islice(loader, most)] for _ in range(passes)]


def lengths(kind: str) -> int:
    """Return the length of the divided loader."""
    return len(DeviceLoader(LOADERS[kind](), torch.device("cpu"), torch.contiguous_format))


def epochs(who: str, told: list[int]) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return passes over a DistributedSampler: through accelerate()'s loader, and in plain PyTorch.

    `who` names the object that is told the epochs.
    """
    found = []
    loader = DataLoader(DATA, 2, sampler=DistributedSampler(DATA))
    ours = DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format)
    for epoch in told:
        {"loader": ours, "its sampler": ours.sampler, "the sampler": loader.sampler}[who].set_epoch(
            epoch
        )
        found.append([batch.tolist() for batch in ours])
    expected = []
    sampler = DistributedSampler(DATA)
    for epoch in told:
        sampler.set_epoch(epoch)
        expected.append([batch.tolist() for batch in DataLoader(DATA, 2, sampler=sampler)])
    return found, expected


def two_orders() -> list[list[int]]:
    """Return the order of one pass each of two shuffled loaders."""
    _seed()
    loaders = [
        DeviceLoader(
            DataLoader(range(64), 4, shuffle=True), torch.device("cpu"), torch.contiguous_format
        )
        for _ in range(2)
    ]
    return [[int(number) for batch in loader for number in batch] for loader in loaders]


def subclass() -> dict[str, Any]:
    """Return the attributes of a divided loader whose class is a subclass of DataLoader."""
    loader = Halved(DATA, 2, shuffle=True, drop_last=True)
    loader.own = "kept"
    ours = DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format)
    ours.later = 5
    return {
        "own": ours.own,
        "later": ours.loader.later,
        "kind": type(ours.loader).__name__,
        "length": len(ours),
        "sampler": ours.sampler is loader.sampler,
        "plain length": len(loader),
    }

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
from gallery_lib.errors import InputError
from on_ranks.loader_kinds import DATA, LOADERS, Halved, rank


def _seed() -> None:
    torch.manual_seed(100 + rank())
    random.seed(rank())
    np.random.seed(rank())


def _numbers(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def batches(
    kind: str,
    passes: int = 1,
    most: int = 100,
    shard: str = "auto",
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the batches of some passes on this rank as lists, the warnings, and the error.

    The ranks are seeded differently. `options` are those of the loader.
    """
    result: dict[str, Any] = {"passes": [], "said": [], "error": ""}
    _seed()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            loader = DeviceLoader(
                LOADERS[kind](**(options or {})),
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


def plain(kind: str, passes: int = 1) -> list[list[Any]]:
    """Return the batches of the loader itself, not divided."""
    _seed()
    loader = LOADERS[kind]()
    return [[_numbers(batch) for batch in loader] for _ in range(passes)]


def lengths(kind: str) -> int:
    """Return the length of the divided loader."""
    return len(DeviceLoader(LOADERS[kind](), torch.device("cpu"), torch.contiguous_format))


def epochs(who: str, told: list[int | None]) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return passes over a DistributedSampler: through accelerate()'s loader, and in plain PyTorch.

    `who` names the object that is told the epochs; None tells nothing.
    """
    passes: list[list[Any]] = []
    loader = DataLoader(DATA, 2, sampler=DistributedSampler(DATA))
    ours = DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format)
    owners: Any = {"loader": ours, "its sampler": ours.sampler, "the sampler": loader.sampler}
    for epoch in told:
        if epoch is not None:
            owners[who].set_epoch(epoch)
        passes.append([batch.tolist() for batch in ours])
    expected = []
    sampler = DistributedSampler(DATA)
    for epoch in told:
        if epoch is not None:
            sampler.set_epoch(epoch)
        expected.append([batch.tolist() for batch in DataLoader(DATA, 2, sampler=sampler)])
    return passes, expected


def changed_later() -> dict[str, Any]:
    """Return passes of loaders whose samplers were changed after accelerate()."""

    def larger(loader: Any) -> None:
        loader.batch_sampler.batch_size = 5

    def without_tail(loader: Any) -> None:
        loader.batch_sampler.batch_size, loader.batch_sampler.drop_last = 3, True

    def fewer(loader: Any) -> None:
        loader.sampler.num_samples = 6

    def of_ranks(loader: Any) -> None:
        loader.batch_sampler.sampler = DistributedSampler(DATA)

    result: dict[str, Any] = {}
    for change in (larger, without_tail, fewer, of_ranks):
        made = LOADERS["few weighted" if change is fewer else "sequential"]()
        loader = DeviceLoader(made, torch.device("cpu"), torch.contiguous_format)
        list(loader)
        change(loader)
        try:
            result[change.__name__] = ([batch.tolist() for batch in loader], len(loader))
        except InputError as error:
            result[change.__name__] = str(error)
    return result


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

"""Search for the first step whose loss is not finite, its rank, and what was not finite there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gallery_lib.comm import process_group


@dataclass(frozen=True)
class Divergence:
    """Point at which a training diverged.

    `step` counts from 1. `what` names the first thing that is not finite on `rank`: the batch, a
    parameter, or the loss alone.
    """

    step: int
    rank: int
    what: str


def find(
    means: Sequence[float], own: Sequence[Tensor], first_step: int, model: nn.Module, batch: Any
) -> Divergence | None:
    """Return the divergence among some consecutive steps, or None. Collective if there is one.

    Args:
        means: losses, averaged over ranks.
        own: this rank's losses of the same steps, scalars.
        first_step: number of the first of these steps, from 1.
        model: the trained model, with its weights after the last of these steps.
        batch: the batch of the last of these steps.
    """
    place = next((place for place, loss in enumerate(means) if not math.isfinite(loss)), None)
    if place is None:
        return None
    causes = process_group.all_ranks(
        None if own[place].isfinite() else _what(model, batch if place == len(means) - 1 else None)
    )
    rank, what = next(
        ((rank, what) for rank, what in enumerate(causes) if what is not None),
        (0, "the mean of the ranks' losses"),
    )
    return Divergence(first_step + place, rank, what)


def _what(model: nn.Module, batch: Any) -> str:
    if not all(_finite(value) for value in tree_leaves(batch) if isinstance(value, Tensor)):
        return "the batch"
    wrong = next(
        (name for name, parameter in model.named_parameters() if not _finite(parameter.detach())),
        None,
    )
    return "the loss" if wrong is None else f"the parameter {wrong}"


def _finite(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex()) or bool(
        torch.isfinite(value).all()
    )


def in_words(diverged_at: dict[str, Any]) -> str:
    """Return a phrase for messages that describes `diverged_at` of a run's results."""
    place = f"step {diverged_at['step']} on rank {diverged_at['rank']}"
    return (
        f"its loss is no finite number from {place} on, where {diverged_at['what']} is not finite"
    )

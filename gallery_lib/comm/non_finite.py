"""Gradients that are infinite or not a number: say whose they are, and stop or skip the step."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gallery_lib.comm.bucket import Bucket
from gallery_lib.errors import RunFailed


class _Record(NamedTuple):
    """Finiteness of a bucket: of each gradient on this rank, and of the mean of all ranks."""

    names: list[str]
    not_finite: Tensor
    mean_is_not_finite: Tensor


class NonFiniteGradients:
    """Record of a backward pass's gradients that are not finite, and the reaction to them.

    Args:
        module: the module whose gradients are averaged; held weakly.
        reaction: the option `non_finite`: `ignore`, `stop` or `skip`.
        join_is_active: tells whether ranks without batches stand by at present (DDP's join). Such
            ranks take no part in saying whose gradients are not finite.
    """

    def __init__(
        self, module: nn.Module, reaction: str, join_is_active: Callable[[], bool]
    ) -> None:
        self.ignored = reaction == "ignore"
        self._stop = reaction == "stop"
        self._module = weakref.ref(module)
        self._join_is_active = join_is_active
        self._records: list[_Record] = []

    def note(self, bucket: Bucket) -> None:
        """Note the finiteness of an averaged bucket, unless it is ignored."""
        if not self.ignored:
            self._records.append(
                _Record(bucket.names, bucket.not_finite(), bucket.mean_is_not_finite())
            )

    def clear(self) -> None:
        """Forget the buckets of this backward pass."""
        self._records = []

    def react(self) -> None:
        """Stop or skip the step if a mean of this backward pass is not finite.

        Every rank comes to the same result, since all have the same means.

        Raises:
            RunFailed: where the step is to stop.
        """
        records, self._records = self._records, []
        if not any(bool(record.mean_is_not_finite) for record in records):
            return
        own = [
            name
            for record in records
            for name, bad in zip(record.names, record.not_finite.tolist(), strict=True)
            if bad
        ]
        message = f"a gradient is infinite or not a number: {self._whose(own)}"
        if self._stop:
            raise RunFailed(f"{message}.")
        if own or dist.get_rank() == 0:
            print(f"{message}; this step is skipped.", file=sys.stderr, flush=True)
        # Runs after DDP has put the means into the parameters' gradients: DDP has queued that by
        # now.
        torch.autograd.Variable._execution_engine.queue_callback(self._drop_gradients)  # type: ignore[attr-defined]

    def _whose(self, own: list[str]) -> str:
        """Return the ranks and parameters with such gradients, in words."""
        everyone: list[list[str]] = [[]] * dist.get_world_size()
        if self._join_is_active():
            everyone[dist.get_rank()] = own
            elsewhere = (
                "on a rank that says so itself, or in the mean, which overflowed on the wire"
            )
        else:
            dist.all_gather_object(everyone, own)
            elsewhere = "only in the mean, which overflowed on the wire"
        return (
            "; ".join(
                f"on rank {rank} of {_some(names)}" for rank, names in enumerate(everyone) if names
            )
            or elsewhere
        )

    def _drop_gradients(self) -> None:
        """Set gradients to None: optimizers then leave a parameter and its state as they are."""
        module = self._module()
        assert module is not None  # its backward pass is going on
        for parameter in module.parameters():
            parameter.grad = None


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

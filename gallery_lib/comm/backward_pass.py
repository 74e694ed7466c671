"""Notice when a reducer has averaged the gradients of a backward pass, and order its buckets then.

The reducer holds a sentinel until that moment. DDP would order the buckets of a new reducer in the
next forward pass, as a collective call. A rank may make a forward pass that others do not, and
every change of strategy makes a new reducer.
"""

from __future__ import annotations

import contextlib
import functools
import weakref

import torch

from gallery_lib.comm.rebuild import DDP


class BackwardPass:
    """Sentinel that lives until the reducer of `model` has averaged the gradients."""

    def __init__(self, model: DDP) -> None:
        self._model = weakref.ref(model)

    def __del__(self) -> None:
        # Outside a backward pass the reducer itself is being deleted.
        with contextlib.suppress(RuntimeError):
            engine = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
            # runs when the reducer is done
            engine.queue_callback(functools.partial(_order_buckets, self._model))


def expect_backward_pass(model: DDP) -> weakref.ref[BackwardPass]:
    """Return a reference to the sentinel of the next backward pass; dead once that has ended."""
    sentinel = BackwardPass(model)
    future: torch.futures.Future[BackwardPass] = torch.futures.Future()
    future.set_result(sentinel)
    # The reducer drops the sentinel at the end of the backward pass.
    model.reducer._install_post_backward_futures([future])
    return weakref.ref(sentinel)


def _order_buckets(reference: weakref.ref[DDP]) -> None:
    model = reference()
    if model is not None and model.reducer._rebuild_buckets():
        model._has_rebuilt_buckets = True

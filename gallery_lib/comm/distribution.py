"""DistributedDataParallel beside a model: stands between the model's calls and averaged gradients.

Gradients are averaged whenever a backward pass goes through an output of the call. That covers the
second of two losses, a graph that is retained, and parameters that were frozen when the model was
distributed. A gradient that arrives in another way (from `twin.encoder(x)`, say) would be each
rank's own, and raises InputError.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn, optim
from torch.nn.parallel.distributed import _find_tensors
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gallery_lib.comm import averages, topology
from gallery_lib.comm.strategy import gradient_reducer, use_strategy
from gallery_lib.comm.tuner import apply
from gallery_lib.config import Comm
from gallery_lib.errors import InputError, RunFailed

DDP = nn.parallel.DistributedDataParallel


class OneGraphDDP(DDP):
    """DDP that may leave a compiled model one graph.

    torch splits the graph at bucket boundaries, so that the first gradients are on their way while
    others are computed. On CPUs of one host averaging and computing need the same cores: there the
    model stays one graph.
    """

    one_graph = False

    def _inside_ddp_forward(self) -> Any:
        return contextlib.nullcontext() if self.one_graph else super()._inside_ddp_forward()


def _layout(parameters: list[nn.Parameter]) -> list[Any]:
    return [(parameter.dtype, parameter.stride()) for parameter in parameters]


class Distribution:
    """DDP of one model, rebuilt when other parameters ask for gradients.

    Args:
        model: the user's own module.
        device: where the model is.
        options: how gradients are averaged.
    """

    def __init__(self, model: nn.Module, device: torch.device, options: Comm) -> None:
        self.model, self.device, self.options = model, device, options
        self.ddp: OneGraphDDP | None = None
        self._all: list[nn.Parameter] = []
        self.trained: list[nn.Parameter] = []
        # Weak references by id, since another parameter may get the id of a deleted one.
        self._synchronized: dict[int, weakref.ref[nn.Parameter]] = {}
        self._watches: list[Any] = []
        self._look_at_parameters = True
        self._layout: list[Any] = []
        self.synchronizes = True
        self._local = False  # the last call was made in no_sync
        self._expecting = False  # DDP is going to average the gradients that come next
        self._in_backward = False
        self._missing = 0  # gradients that DDP has not had since it was prepared
        self._arrived: list[nn.Parameter] = []  # those that it has had
        self._earlier: set[nn.Parameter] = set()  # and had in a backward pass before this one
        # Parameters of a compiled graph that got no gradient.
        self._without: list[nn.Parameter] = []
        self._refresh()
        # heads are replaced between accelerate() and the first call
        self._look_at_parameters = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model through DDP.

        Raises:
            InputError: where the last backward pass left parameters out.
        """
        self._refresh()
        ddp = self.ddp
        if ddp is None:
            return self.model(*args, **kwargs)
        ddp.training, ddp.require_backward_grad_sync = self.model.training, self.synchronizes
        try:
            output = ddp(*args, **kwargs)
        except RuntimeError as error:
            if "find_unused_parameters" not in str(error):
                raise
            if self._in_backward:
                raise RunFailed(
                    "the last backward pass ended with an error, so gradients of the ranks may be "
                    "out of step. Mend that error: the training cannot go on after it."
                ) from error
            raise self.unused() from error
        if torch.is_grad_enabled():
            self._in_backward, self._local, self._expecting = (
                False,
                not self.synchronizes,
                self.synchronizes,
            )
            if self.synchronizes:
                averages.trains_here()
                self._prepared()
                self._without = []
                self._watch(output)
            else:
                averages.note_local()
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context: leave the gradients of calls unaveraged, to accumulate them."""
        before, self.synchronizes = self.synchronizes, False
        try:
            yield
        finally:
            self.synchronizes = before

    def join(self, **options: Any) -> Any:
        """Return DDP's join context, for ranks with different numbers of batches."""
        return contextlib.nullcontext() if self.ddp is None else self.ddp.join(**options)

    def look_at_parameters(self) -> None:
        """Have the next call look for added or replaced parameters; on the CPU every call does."""
        self._look_at_parameters = True

    def _refresh(self) -> None:
        """Rebuild DDP if other parameters ask for gradients than it knows. Then a collective call.

        Changed strides or dtypes need a rebuild too: DDP reads gradients by the strides that it was
        made with.
        """
        # On CUDA the walk over parameters takes time of the host, which the GPU may wait for.
        if self._look_at_parameters or self.device.type == "cpu":
            self._all, self._look_at_parameters = list(self.model.parameters()), False
        trained = [parameter for parameter in self._all if parameter.requires_grad]
        same = len(trained) == len(self.trained) and all(map(operator.is_, trained, self.trained))
        layout = _layout(trained)
        if same and layout == self._layout:
            return
        self._layout = layout
        self.trained = trained
        for watch in self._watches:
            watch.remove()
        if self.ddp is not None:
            if gradient_reducer(self.ddp) is not None:
                use_strategy(self.ddp, Comm())  # ends its threads and groups
            self.ddp.reducer._remove_autograd_hooks()
        self._watches, self.ddp, self._expecting = [], None, False
        note_unfinished(self, False)
        if not trained:
            return
        known = self._synchronized
        new = [p for p in self._all if id(p) not in known or known[id(p)]() is not p]
        known.update((id(p), weakref.ref(p)) for p in new)
        self.ddp = OneGraphDDP(
            self.model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            find_unused_parameters=self.options.find_unused_parameters,
            init_sync=bool(new),
        )
        self.ddp.one_graph = self.device.type == "cpu" and len(topology.find().hosts) == 1
        if self.options != Comm(find_unused_parameters=self.options.find_unused_parameters):
            apply(self.ddp, self.options)
        arrived = weakref.WeakMethod(self._gradient_arrived)
        self._watches = [
            parameter.register_post_accumulate_grad_hook(functools.partial(_call, arrived))
            for parameter in trained
        ]

    def _watch(self, output: Any) -> None:
        """Have every backward pass through `output` averaged; DDP itself does it for the first."""
        outputs = [tensor for tensor in _find_tensors(output) if tensor.requires_grad]
        reached = weakref.WeakMethod(self._output_reached)
        for tensor in outputs:
            tensor.register_hook(functools.partial(_call, reached, [*map(weakref.ref, outputs)]))

    def _output_reached(self, outputs: list[weakref.ref[Tensor]], _gradient: Tensor) -> None:
        if self._expecting or self._in_backward or self.ddp is None:
            return
        search = self.ddp.find_unused_parameters and not self.ddp.static_graph
        alive = [tensor for reference in outputs if (tensor := reference()) is not None]
        if self.ddp.reducer._rebuild_buckets():  # as before each forward pass
            self.ddp._has_rebuilt_buckets = True
        self.ddp.reducer.prepare_for_backward(alive if search else [])
        self._expecting = True
        self._prepared()

    def _prepared(self) -> None:
        """Note that DDP waits for a gradient of every parameter."""
        self._missing, self._arrived, self._earlier = len(self.trained), [], set()

    def _gradient_arrived(self, parameter: nn.Parameter) -> None:
        if parameter in self._earlier:  # a second backward pass, and DDP waits for others
            raise self.unused()
        self._missing -= 1
        self._arrived.append(parameter)
        # A compiled graph runs all its parameters' hooks; DDP takes a missing gradient as zeros.
        nothing = parameter.grad is None
        if nothing or self._without:
            self._without = [p for p in self._without if p is not parameter] + [parameter] * nothing
        if self._in_backward or self._local or not self.synchronizes:
            return
        if self._expecting:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)  # type: ignore[attr-defined]
            return
        if nothing:
            return
        name = next((n for n, p in self.model.named_parameters() if p is parameter), "a parameter")
        raise InputError(
            f"the gradient of {name} does not come from a call of the model that accelerate() "
            "returned, so it would be each rank's own. Call that model itself (parts of it, and "
            "model.module, are not averaged), or put the backward pass into `with "
            "model.no_sync():` if that is meant."
        )

    def _backward_ended(self) -> None:
        """Note whether DDP still waits, for instance for the second of two losses.

        Such a loss has parameters of its own.
        """
        averages.note()
        finds = self.options.find_unused_parameters
        self._in_backward, self._expecting = False, self._missing > 0 and not finds
        self._earlier = set(self._arrived) if self._expecting else set()
        note_unfinished(self, self._expecting or (bool(self._without) and not finds))

    def unused(self) -> InputError:
        """Return the error for parameters that got no gradient in the last backward pass."""
        without = {id(p) for p in self._without}
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        names = [n for n, p in named if p.grad is None or id(p) in without] or ["a parameter"]
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        return InputError(
            f"{names[0]}{more} got no gradient in the last backward pass, so "
            "gradients could not be averaged. Set config.comm.find_unused_parameters "
            "= True, or leave such parameters out of the model.",
            parameter="find_unused_parameters",
        )


def _call(method: weakref.WeakMethod[Any], *arguments: Any) -> None:
    """Call a bound method if its object is still there: hooks must not keep it alive."""
    alive = method()
    if alive is not None:
        alive(*arguments)


# --------------------------------------------------------------------------------------------------
# Refuse optimizer steps on gradients whose averaging has not ended.
#
# A bucket is averaged once all its parameters have a gradient. Where one gets none, torch says so
# at the next forward pass. Until then the gradients of its bucket are each rank's own. A step in
# between, the last of a training say, would use those gradients. So every optimizer is checked
# before its step, and after it for optimizers that call a closure.


class AveragedGradients(Protocol):
    """Owner of averaged gradients: `trained` are its parameters.

    `unused()` returns the error for those that got no gradient.
    """

    trained: list[nn.Parameter]

    def unused(self) -> InputError:
        """Return the error for parameters that got no gradient."""
        ...


_unfinished: weakref.WeakSet[Any] = weakref.WeakSet()


def note_unfinished(averages: AveragedGradients, unfinished: bool) -> None:
    """Note whether the last backward pass left gradients that wait for others of their bucket."""
    if unfinished:
        _ask_before_steps()
        _unfinished.add(averages)
    else:
        _unfinished.discard(averages)


@functools.cache
def _ask_before_steps() -> None:
    """Register the check with every optimizer of this process, from its next step on."""
    register_optimizer_step_pre_hook(_refuse)
    register_optimizer_step_post_hook(_refuse)


def _refuse(optimizer: optim.Optimizer, *_: Any) -> None:
    """Raise InputError where the optimizer has a parameter whose gradient may not be averaged."""
    for gradients in list(_unfinished):
        trained = set(map(id, gradients.trained))
        if any(
            id(parameter) in trained
            for group in optimizer.param_groups
            for parameter in group["params"]
        ):
            raise gradients.unused()

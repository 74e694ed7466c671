"""DistributedDataParallel that keeps the user's model: names, attributes, type and methods.

`distribute(model, …)` returns a *twin* of the model. The twin is an object of a subclass of the
model's class and shares the model's `__dict__`, so both have the same parameters, hooks and
attributes. A call of the twin goes through a DistributedDataParallel that is kept beside it.
`twin.module` is the model itself, which communicates with nobody. So `named_parameters()`,
`state_dict()`, `torch.distributed.checkpoint`, averaging by name and `model.fc` see what they see
on one process. Copies and pickles of the twin are plain models of the user's class.

Gradients are averaged whenever a backward pass goes through an output of the call. That covers the
second of two losses, a graph that is retained, and parameters that were frozen when the model was
distributed. A gradient that arrives in another way (from `twin.encoder(x)`, say) would be each
rank's own, and raises InputError.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gallery_lib.comm import process_group, torch_ddp
from gallery_lib.comm.accelerate_ddp import gradient_reducer, use_strategy
from gallery_lib.comm.torch_ddp import DDP, DISTRIBUTION, OneGraphDDP
from gallery_lib.comm.tuner import apply
from gallery_lib.config import Comm
from gallery_lib.errors import InputError, RunFailed


class _Twin:
    """First base of a twin's class, before the user's class."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Keep a twin's class from the user's `__init_subclass__`, a registry for instance."""


def distribute(model: nn.Module, device: torch.device, options: Comm) -> Any:
    """Return the twin of `model`; its calls average gradients over all ranks as `options` say.

    A collective call. The model must be on `device` already.

    Raises:
        InputError: for a model whose class cannot have a twin.
    """
    kind = type(model)
    distribution = _Distribution(model, device, options)

    namespace: dict[str, Any] = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__call__": lambda self, *args, **kwargs: distribution(*args, **kwargs),
        "__reduce_ex__": lambda self, protocol: model.__reduce_ex__(protocol),
        "__deepcopy__": lambda self, memo: copy.deepcopy(model, memo),
        DISTRIBUTION: distribution,
    }
    own: dict[str, Any] = {"no_sync": distribution.no_sync, "module": model}
    namespace |= {name: value for name, value in own.items() if not hasattr(model, name)}
    metaclass: Any = type(kind)
    try:
        twin: Any = object.__new__(metaclass(kind.__name__, (_Twin, kind), namespace))
        object.__setattr__(twin, "__dict__", model.__dict__)
    except TypeError as error:
        raise InputError(
            f"a {kind.__name__} cannot be distributed: {error}. Wrap it in a module of your own.",
            parameter="model",
        ) from None
    return twin


def distributed(model: nn.Module) -> DDP | None:
    """Return the DistributedDataParallel through which `model` is called, or None."""
    ddp = torch_ddp.inside(model)
    return ddp if isinstance(ddp, DDP) else None


def plain_module(model: nn.Module) -> nn.Module:
    """Return the user's own module inside what accelerate() returned, or inside a DDP."""
    distribution: _Distribution | None = getattr(type(model), DISTRIBUTION, None)
    if distribution is not None:
        return distribution.model
    return model.module if isinstance(model, DDP) else model


def exposed_communication(model: nn.Module) -> dict[str, float]:
    """Return the seconds of a backward pass in which communication was not hidden by computation.

    The result is {"exposed_communication": seconds}, the mean of the steps that DDP samples by
    itself. It is empty for a model that is not distributed, or before any sample.
    """
    ddp = distributed(model)
    seen = {} if ddp is None else torch_ddp.logged(ddp)
    communication = seen.get("avg_backward_comm_time")
    hidden = seen.get("avg_backward_compute_comm_overlap_time")
    if not communication or hidden is None:
        return {}
    return {"exposed_communication": max(0, communication - hidden) / 1e9}


class _Distribution:
    """DDP of one model on `device`, made anew when other parameters ask for gradients."""

    def __init__(self, model: nn.Module, device: torch.device, options: Comm) -> None:
        self.model, self.device, self.options = model, device, options
        self.ddp: OneGraphDDP | None = None
        self.trained: list[nn.Parameter] = []
        # Weak references by id, since another parameter may get the id of a deleted one.
        self._synchronized: dict[int, weakref.ref[nn.Parameter]] = {}
        self._watches: list[Any] = []
        # What a second backward pass is searched from, for parameters that it leaves out.
        self._outputs: list[Tensor] = []
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model through DDP.

        Raises:
            InputError: where the last backward pass left parameters out.
        """
        self._refresh()
        ddp, self._outputs = self.ddp, []
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
            self._in_backward, self._local = False, not self.synchronizes
            self._expecting = self.synchronizes
            process_group.note_call(averages=self.synchronizes)
            if self.synchronizes:
                self._prepared()
                self._without = []
                self._watch(output)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context: leave the gradients of calls unaveraged, to accumulate them."""
        before, self.synchronizes = self.synchronizes, False
        try:
            yield
        finally:
            self.synchronizes = before

    def _refresh(self) -> None:
        """Make DDP anew if other parameters ask for gradients than it knows: a collective call.

        So do changed strides or dtypes: DDP reads gradients by the strides that it was made with.
        """
        every = list(self.model.parameters())
        trained = [parameter for parameter in every if parameter.requires_grad]
        layout = [(parameter.dtype, parameter.stride()) for parameter in trained]
        same = len(trained) == len(self.trained) and all(map(operator.is_, trained, self.trained))
        if same and layout == self._layout:
            return
        self.trained, self._layout = trained, layout
        for watch in self._watches:
            watch.remove()
        if self.ddp is not None:
            if gradient_reducer(self.ddp) is not None:
                use_strategy(self.ddp, Comm())  # ends its threads and groups
            torch_ddp.remove_hooks(self.ddp)
        self._watches, self.ddp, self._expecting = [], None, False
        _unfinished.discard(self)
        if not trained:
            return
        known = self._synchronized
        new = [p for p in every if id(p) not in known or known[id(p)]() is not p]
        known.update((id(p), weakref.ref(p)) for p in new)
        self.ddp = OneGraphDDP(
            self.model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            find_unused_parameters=self.options.find_unused_parameters,
            init_sync=bool(new),
        )
        self.ddp.one_graph = (
            self.device.type == "cpu" and len(process_group.find_topology().hosts) == 1
        )
        if self.options != Comm(find_unused_parameters=self.options.find_unused_parameters):
            apply(self.ddp, self.options)
        arrived = functools.partial(_call, weakref.WeakMethod(self._gradient_arrived))
        self._watches = [p.register_post_accumulate_grad_hook(arrived) for p in trained]

    def _watch(self, output: Any) -> None:
        """Have every backward pass through `output` averaged; DDP itself does it for the first."""
        outputs = [tensor for tensor in torch_ddp.find_tensors(output) if tensor.requires_grad]
        if self.options.find_unused_parameters:
            self._outputs = outputs
        reached = weakref.WeakMethod(self._output_reached)
        for tensor in outputs:
            tensor.register_hook(functools.partial(_call, reached, [*map(weakref.ref, outputs)]))

    def _output_reached(self, outputs: list[weakref.ref[Tensor]], _gradient: Tensor) -> None:
        if self._expecting or self._in_backward or self.ddp is None:
            return
        alive = [tensor for reference in outputs if (tensor := reference()) is not None]
        torch_ddp.prepare_for_backward(self.ddp, alive)
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
            torch_ddp.at_end_of_backward(self._backward_ended)
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
        process_group.note_averaged()
        finds = self.options.find_unused_parameters
        self._in_backward, self._expecting = False, self._missing > 0 and not finds
        self._earlier = set(self._arrived) if self._expecting else set()
        if self._expecting or (self._without and not finds):
            _check_before_steps()
            _unfinished.add(self)
        else:
            _unfinished.discard(self)

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


# Refuse optimizer steps on gradients whose averaging has not ended. A bucket is averaged once all
# its parameters have a gradient. Where one gets none, torch says so at the next forward pass. Until
# then the gradients of its bucket are each rank's own. A step in between, the last of a training
# say, would use those gradients. So every optimizer is checked before its step, and after it for
# optimizers that call a closure.
_unfinished: weakref.WeakSet[_Distribution] = weakref.WeakSet()


@functools.cache
def _check_before_steps() -> None:
    register_optimizer_step_pre_hook(_refuse)
    register_optimizer_step_post_hook(_refuse)


def _refuse(optimizer: optim.Optimizer, *_: Any) -> None:
    """Raise InputError where the optimizer has a parameter whose gradient may not be averaged."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for distribution in list(_unfinished):
        if any(id(parameter) in stepped for parameter in distribution.trained):
            raise distribution.unused()

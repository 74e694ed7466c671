"""torch's private API, as of torch 2.11 to 2.15: the only file of this room that touches it.

`rebuild` replaces the C++ reducer of a DistributedDataParallel without any trace of the one before.
Hooks, attributes, mode and buffers stay the user's. The parameters are those the model was wrapped
with, as in plain DDP: a parameter that is frozen at the moment is still averaged once it is
unfrozen. Copies and pickles of the model are plain DDPs.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel.distributed import _find_tensors

from gallery_lib.config import Comm

DDP = nn.parallel.DistributedDataParallel
find_tensors = _find_tensors
# Attributes of a DDP for the sizes of buckets.
_BUCKETS = "_bucket_config", *("bucket_bytes_cap" + more for more in ("", "_list", "_default"))


def default_store() -> dist.Store:
    """Return the store of the default process group."""
    return cast(dist.Store, dist.distributed_c10d._get_default_store())


def default_timeout(device: torch.device) -> timedelta:
    """Return the timeout of the default group; torch would give new groups half an hour instead."""
    group = dist.group.WORLD
    assert group is not None
    return cast(timedelta, group._get_backend(device).options._timeout)


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Run `callback` at the end of the present backward pass, after those queued before.

    Raises:
        RuntimeError: outside a backward pass.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # type: ignore[attr-defined]


def logged(model: DDP) -> dict[str, Any]:
    """Return what DDP's logger knows of `model`."""
    return cast("dict[str, Any]", model._get_ddp_logging_data())  # type: ignore[no-untyped-call]


def is_joined(model: DDP) -> bool:
    """Return whether DDP's join context is active, in which ranks without batches stand by."""
    return bool(model._join_config.enable)


def own_averaging(model: DDP) -> str:
    """Return why `model` cannot be given another way to average gradients, or ''."""
    if getattr(model, "reducer", None) is None or model.logger is None:
        return "it averages no gradients in buckets (delay_all_reduce_named_params)"
    if model._use_python_reducer:
        return "torch compiles its averaging (torch._dynamo.config.optimize_ddp='python_reducer')"
    if model.mixed_precision is not None:
        return "it has DDP's mixed_precision, which autocast does as well"
    if model._comm_hooks or logged(model).get("comm_hook"):
        return "it has a communication hook of its own (register_comm_hook)"
    return ""


class OneGraphDDP(DDP):
    """DDP that may leave a compiled model one graph.

    torch splits the graph at bucket boundaries, so that the first gradients are on their way while
    others are computed. On CPUs of one host averaging and computing need the same cores: there the
    model stays one graph.
    """

    one_graph = False

    def _inside_ddp_forward(self) -> Any:
        return contextlib.nullcontext() if self.one_graph else super()._inside_ddp_forward()


def order_buckets(model: DDP) -> None:
    """Order the buckets of a new reducer, as DDP does before each forward pass."""
    if model.reducer._rebuild_buckets():
        model._has_rebuilt_buckets = True


def prepare_for_backward(model: DDP, outputs: list[Tensor]) -> None:
    """Have DDP average the gradients of the next backward pass from `outputs` too."""
    order_buckets(model)
    search = model.find_unused_parameters and not model.static_graph
    model.reducer.prepare_for_backward(outputs if search else [])


def remove_hooks(model: DDP) -> None:
    """End the averaging of `model`, whose parameters get another DDP."""
    model.reducer._remove_autograd_hooks()


class _BackwardPass:
    """Sentinel that the reducer holds until it has averaged the gradients of a backward pass."""

    def __init__(self, model: DDP, ended: Callable[[DDP], None]) -> None:
        self._model, self._ended = weakref.ref(model), ended

    def __del__(self) -> None:
        # Outside a backward pass the reducer itself is being deleted.
        with contextlib.suppress(RuntimeError):
            at_end_of_backward(functools.partial(_backward_ended, self._model, self._ended))


def _backward_ended(reference: weakref.ref[DDP], ended: Callable[[DDP], None]) -> None:
    if (model := reference()) is not None:
        order_buckets(model)
        ended(model)


def after_backward(model: DDP, ended: Callable[[DDP], None]) -> None:
    """Call `ended(model)` at the end of the next backward pass that averages its gradients.

    Every rank has come to that point then, so collective calls are safe. The buckets of a new
    reducer have been ordered by then. DDP itself would order them in the next forward pass, which
    one rank may make and others not. A rebuild drops the call.
    """
    future: torch.futures.Future[_BackwardPass] = torch.futures.Future()
    future.set_result(_BackwardPass(model, ended))
    model.reducer._install_post_backward_futures([future])


@dataclass
class _UserSettings:
    """The settings the user made a model with, as far as a rebuild may change them."""

    parameters: list[Tensor]
    sparse: list[bool]
    names: dict[int, str]
    buckets: dict[str, Any]
    find_unused_parameters: bool


_settings: weakref.WeakKeyDictionary[DDP, _UserSettings] = weakref.WeakKeyDictionary()


def _user_settings(model: DDP) -> _UserSettings:
    frozen = [parameter for parameter in _reduced(model) if not parameter.requires_grad]
    with _unfrozen(frozen):
        parameters, sparse = model._build_params_for_reducer()  # type: ignore[no-untyped-call]
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    return _UserSettings(
        parameters,
        sparse,
        {place: names[id(parameter)] for place, parameter in enumerate(parameters)},
        {name: getattr(model, name) for name in _BUCKETS if hasattr(model, name)},
        model.find_unused_parameters,
    )


def _reduced(model: DDP) -> list[Tensor]:
    """Return the parameters that the present reducer averages, frozen ones included."""
    if all(parameter.requires_grad for parameter in model.module.parameters()):
        return list(model.module.parameters())
    return [p for b in model.reducer._get_zeros_like_grad_buckets() for p in b.parameters()]


@contextlib.contextmanager
def _unfrozen(parameters: list[Tensor]) -> Iterator[None]:
    """Context: make the parameters require gradients; torch's reducer crashes on frozen ones."""
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)


def _buckets(user: _UserSettings, options: Comm) -> dict[str, Any]:
    """Return DDP's attributes for bucket sizes: those of `options`, else the user's."""
    if options.bucket_mb is None:
        return user.buckets
    config = user.buckets.get("_bucket_config")
    if config is None:  # older versions of torch keep two numbers instead
        cap = int(options.bucket_mb * 2**20)
        return {"bucket_bytes_cap": cap, "bucket_bytes_cap_default": False}
    config = type(config).create(
        use_python_reducer=False, bucket_cap_mb=options.bucket_mb, bucket_cap_mb_list=None
    )
    return {
        "_bucket_config": config,
        "bucket_bytes_cap": config.bucket_bytes_cap,
        "bucket_bytes_cap_list": list(config.per_bucket_bytes_caps),
        "bucket_bytes_cap_default": config.first_bucket_bytes_cap < config.bucket_bytes_cap,
    }


def rebuild(model: DDP, options: Comm) -> None:
    """Replace `model.reducer` and `model.logger`, following the user's settings and `options`.

    A collective call between two steps.
    """
    user = _settings.get(model) or _settings.setdefault(model, _user_settings(model))
    for name, value in _buckets(user, options).items():
        setattr(model, name, value)
    model.find_unused_parameters = user.find_unused_parameters or options.find_unused_parameters
    remove_hooks(model)  # the reducer may live on, where the user holds it
    views = model.gradient_as_bucket_view
    try:
        model.gradient_as_bucket_view = options.bucket_views or views
        with _unfrozen([p for p in user.parameters if not p.requires_grad]):
            model._ddp_init_helper(  # type: ignore[no-untyped-call]
                user.parameters, user.sparse, user.names, model.static_graph
            )
    finally:
        model.gradient_as_bucket_view = views
    if options.bucket_mb is not None:  # torch.compile under DDP wants its first bucket to fit in
        model.bucket_bytes_cap = max(model.bucket_bytes_cap, dist._DEFAULT_FIRST_BUCKET_BYTES)
    model._has_rebuilt_buckets = False
    if model.static_graph:
        model._static_graph_delay_allreduce_enqueued = False
        model.reducer._set_static_graph()
        assert model.logger is not None
        model.logger._set_static_graph()
    if getattr(model, "_require_manual_backward_finalization", False):
        model.require_manual_backward_finalization = True  # type: ignore[misc]


def use_hook(model: DDP, hook: Callable[..., torch.futures.Future[Tensor]]) -> None:
    """Have `hook` average the gradients; the model's own list of hooks does not get it."""
    dist._register_comm_hook(model.reducer, None, hook)


DISTRIBUTION = "_gallery_distribution"
"""Class attribute that holds the DDP of a model that accelerate() returned (`ddp.py`)."""


def inside(model: Any) -> Any:
    """Return the DistributedDataParallel through which `model` is called, else `model` itself."""
    distribution = getattr(type(model), DISTRIBUTION, None)
    return model if distribution is None else distribution.ddp

"""Rebuild the C++ reducer of a DistributedDataParallel without any trace of the one before.

Nothing else of the model changes: hooks, attributes, mode and buffers are the user's. The first
call notes in `AsMade` what the user made the model with, so every later rebuild starts from it. The
parameters are those the model was wrapped with, as in plain DDP. A parameter that is frozen at the
moment is still averaged once it is unfrozen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from gallery_lib.config import Comm

DDP = nn.parallel.DistributedDataParallel
SETTLING_STEPS = 2
"""Steps after a rebuild that no measurement counts: DDP orders its buckets anew."""
_MEBIBYTE = 2**20
_BUCKET_ATTRIBUTES = (
    "_bucket_config",
    "bucket_bytes_cap",
    "bucket_bytes_cap_list",
    "bucket_bytes_cap_default",
)


@dataclass
class AsMade:
    """The settings the user made a model with, as far as a rebuild may change them."""

    parameters: list[Tensor]
    sparse: list[bool]
    names: dict[int, str]
    """Parameter names by index in `parameters`, for DDP's error messages."""
    buckets: dict[str, Any]
    find_unused_parameters: bool
    static_graph: bool
    rebuilt_static_graph: bool = field(default=False)
    """Whether the last rebuild set `model.static_graph`; if so, it is not the user's setting."""

    @staticmethod
    def of(model: DDP) -> AsMade:
        """Return the settings of `model`, which no rebuild has changed yet."""
        frozen = [parameter for parameter in _reduced(model) if not parameter.requires_grad]
        with _unfrozen(frozen):
            parameters, sparse = model._build_params_for_reducer()  # type: ignore[no-untyped-call]
        names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        return AsMade(
            parameters=parameters,
            sparse=sparse,
            names={place: names[id(parameter)] for place, parameter in enumerate(parameters)},
            buckets={
                name: getattr(model, name) for name in _BUCKET_ATTRIBUTES if hasattr(model, name)
            },
            find_unused_parameters=model.find_unused_parameters,
            static_graph=model.static_graph,
        )


def _reduced(model: DDP) -> list[Tensor]:
    """Return the parameters that the present reducer averages, frozen ones included."""
    if all(parameter.requires_grad for parameter in model.module.parameters()):
        return list(model.module.parameters())
    return [
        parameter
        for bucket in model.reducer._get_zeros_like_grad_buckets()
        for parameter in bucket.parameters()
    ]


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


def _buckets(setup: AsMade, options: Comm) -> dict[str, Any]:
    """Return DDP's attributes for bucket sizes: those of `options`, else the user's."""
    if options.bucket_mb is None:
        return setup.buckets
    config = setup.buckets.get("_bucket_config")
    if config is None:  # older versions of torch keep two numbers instead
        return {
            "bucket_bytes_cap": int(options.bucket_mb * _MEBIBYTE),
            "bucket_bytes_cap_default": False,
        }
    config = type(config).create(
        use_python_reducer=False, bucket_cap_mb=options.bucket_mb, bucket_cap_mb_list=None
    )
    return {
        "_bucket_config": config,
        "bucket_bytes_cap": config.bucket_bytes_cap,
        "bucket_bytes_cap_list": list(config.per_bucket_bytes_caps),
        "bucket_bytes_cap_default": config.first_bucket_bytes_cap < config.bucket_bytes_cap,
    }


def rebuild(model: DDP, setup: AsMade, options: Comm) -> None:
    """Replace `model.reducer` and `model.logger`, following the user's settings and `options`.

    Call it between two steps, on every rank.
    """
    # the user's own _set_static_graph() counts as the user's setting
    setup.static_graph |= model.static_graph and not setup.rebuilt_static_graph
    static_graph = setup.static_graph or options.static_graph
    for name, value in _buckets(setup, options).items():
        setattr(model, name, value)
    model.find_unused_parameters = setup.find_unused_parameters or options.find_unused_parameters
    model.reducer._remove_autograd_hooks()  # it may live on, where the user holds it
    views = model.gradient_as_bucket_view
    try:
        model.gradient_as_bucket_view = options.bucket_views or views
        with _unfrozen(
            [parameter for parameter in setup.parameters if not parameter.requires_grad]
        ):
            model._ddp_init_helper(setup.parameters, setup.sparse, setup.names, static_graph)  # type: ignore[no-untyped-call]
    finally:
        model.gradient_as_bucket_view = views
    model._has_rebuilt_buckets = False
    model.static_graph = static_graph
    setup.rebuilt_static_graph = static_graph and not setup.static_graph
    if static_graph:
        model._static_graph_delay_allreduce_enqueued = False
        model.reducer._set_static_graph()
        assert model.logger is not None
        model.logger._set_static_graph()
    if getattr(model, "_require_manual_backward_finalization", False):
        model.require_manual_backward_finalization = True  # type: ignore[misc]

"""Options of `accelerate()`, a tree that callers change in place: `config.compute.bf16 = True`."""

from __future__ import annotations

import numbers
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, Union

from gallery_lib.config.options import check_value, option, options_of
from gallery_lib.config.training import TrainConfig
from gallery_lib.errors import InputError, did_you_mean


class Settable:
    """Base of option dataclasses that are changed in place.

    Setting a misspelt name, a value of another type or an impossible value raises InputError.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Check a value and set it; raise InputError for a wrong name or value."""
        cls: Any = type(self)
        known, where = options_of(cls), cls.__name__
        if name not in known:
            raise InputError(
                f"{where} has no option `{name}`.{did_you_mean(name, known)} "
                f"Known: {', '.join(known)}.",
                parameter=name,
            )
        declared = known[name]
        if not (value is None and declared.optional) and not _is_a(value, declared.type):
            raise InputError(
                f"{where}.{name}={value!r} must be {declared.must_be}.", parameter=name
            )
        if declared.type in (int, float, bool, str) or declared.choices:
            value = check_value(cls, name, value)
        object.__setattr__(self, name, value)


def _is_a(value: Any, kind: Any) -> bool:
    """Return whether `value` has the annotated type without conversion: text is never a number."""
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return isinstance(value, str)  # check_value names the choices
    if origin in (Union, types.UnionType):
        return any(_is_a(value, member) for member in members)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_a(item, members[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _is_a(key, members[0]) and _is_a(item, members[1]) for key, item in value.items()
        )
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind)


@dataclass
class Compute(Settable):
    """Precision, own CUDA kernels, and the implementation of the optimizer."""

    fp16: bool = False
    """The training runs under float16 autocast, with a GradScaler of its own."""
    bf16: bool = False
    """The training runs under bfloat16 autocast, which stays in your loop."""
    kernels: bool = True
    """Use own CUDA kernels. Switch them off to compare, or where one fails."""
    optimizer: bool = True
    """Give the optimizer its fastest form, fused or sync-free. Updates differ by rounding."""
    cudnn_benchmark: bool = True
    """On CUDA, let cuDNN time its algorithms, unless deterministic ones are asked for."""


@dataclass
class Compiler(Settable):
    """Compiler behind the accelerated backend."""

    enabled: bool = True
    """Compile the model. The first step waits for the compiler; a short run never earns that back.
    """
    backend: str = "inductor"
    """Backend of torch.compile; inductor alone has what the other options switch."""
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        "default"
    )
    """Mode of torch.compile. max-autotune searches longer for faster kernels."""
    cuda_graphs: bool = True
    """On CUDA, capture compiled graphs of static shapes and replay them. Needs more memory."""
    short_attention: bool = True
    """On a CPU, compute attention over short sequences as plain products, which are faster."""
    small_convolutions: bool = True
    """With AVX512-BF16, compute bfloat16 convolutions over few positions as matrix products."""
    vector_dropout: bool = True
    """On a CPU, draw dropout's random numbers by vector instructions; they are the same."""
    vector_masks: bool = True
    """On a CPU, read and write masks (ReLU, dropout, attention) by vector instructions."""
    whole_upsampling: bool = True
    """On a CPU, enlarge images by torch's operator, whose gradient is faster than compiled code."""
    max_pooling: bool = True
    """On a CPU, pool images in channels_last in C++, whose gradient is faster than compiled code.
    """
    large_batch_norms: bool = True
    """With AVX-512, compute bfloat16 batch norms over a MiB and more in channels_last, with the
    ReLU behind them, in C++."""
    mixed_products: bool = True
    """With AVX512-BF16, multiply few rows in bfloat16 by fp32 weights as they lie. A weight must
    not change between a forward pass and its backward pass then."""
    bf16_on_fp32_units: bool = True
    """On a CPU without bfloat16 units, compute its products in fp32 instead of emulating them."""


@dataclass
class Memory(Settable):
    """Memory format of tensors, and the allocator of host memory."""

    layout: Literal["auto", "contiguous", "channels_last"] = "auto"
    """Memory format of 4-d weights and inputs. auto is channels_last for models with 2-d
    convolutions, except on x86 without AVX-512."""
    allocator: bool = True
    """Keep large host blocks instead of returning them to the kernel. Holds more memory."""


@dataclass
class Loader(Settable):
    """Transfer of batches to the device: prefetch, worker priority and sharding."""

    prefetch: int = option(2, unit="batches", minimum=0)
    """Batches copied to the GPU ahead of their use. More take device memory."""
    nice: int = option(19, minimum=0, maximum=19)
    """On a CPU, niceness of the processes that load data, so that steps have the cores."""
    shard: Literal["auto", "always", "never"] = "auto"
    """Whether each process takes its share of the batches (always), or all that its loader yields
    (never). auto: its share, unless the loader has a DistributedSampler; streams are refused."""


@dataclass
class Tune(Settable):
    """Choice of layout and compiler by measurement, at the first training step."""

    enabled: bool = False
    """Let layouts and compilers take turns on the first batch, and use the fastest that computes
    the same."""
    keep: bool = True
    """Keep the choice in a file, and use it next time."""


@dataclass
class Comm(Settable):
    """Gradient averaging in DDP; all but `wire` change only the order of sums."""

    bucket_mb: float | None = option(None, unit="MiB", minimum=0.001)
    """Size of the gradient buckets. Smaller ones start earlier and cost more messages. Default:
    DDP's own, a first one of 1, then 25."""
    bucket_views: bool = False
    """Let gradients lie in the buckets, which saves a copy. The next step overwrites them."""
    find_unused_parameters: bool = False
    """Look in each step for parameters that the loss does not depend on; without it, a step that
    leaves some out is an error. Costs a walk over the graph."""
    streams: int = option(1, minimum=1, maximum=8)
    """Buckets on their way at once, each on a process group of its own."""
    hierarchical: bool = False
    """Add up within each host first, then between hosts. Pays where links between hosts are slow.
    """
    tune: bool = False
    """Let lossless strategies take turns over the first steps, and use the fastest if it certainly
    beats DDP's own."""
    wire: Literal["exact", "bf16", "fp16", "int8"] = "exact"
    """What is sent: gradients as they are, rounded, or as int8 with a scale for every 256. For slow
    networks; changes the training."""
    error_feedback: bool = True
    """With int8, send what rounding loses the next time. Costs the gradients' size in fp32."""


@dataclass
class Config(Settable):
    """Options of `accelerate(model, loader, config)`. Defaults: all that is known to help is on."""

    compute: Compute = option(Compute)
    """Precision and kernels."""
    compiler: Compiler = option(Compiler)
    """The compiler."""
    memory: Memory = option(Memory)
    """Memory layout and allocator."""
    loader: Loader = option(Loader)
    """The way of batches to the device."""
    comm: Comm = option(Comm)
    """Averaging of gradients over processes."""
    tune: Tune = option(Tune)
    """Choice by measurement."""

    @staticmethod
    def plain() -> Config:
        """Return the baseline: device placement, sharding and DistributedDataParallel only."""
        return Config(
            compute=Compute(kernels=False, optimizer=False, cudnn_benchmark=False),
            compiler=Compiler(enabled=False),
            memory=Memory(layout="contiguous", allocator=False),
            loader=Loader(nice=0),
        )


def backend_config(config: TrainConfig) -> Config:
    """Return the `accelerate()` configuration that a training run asks for."""
    result = Config() if config.compiler_opt else Config.plain()
    result.compute.kernels = config.compiler_opt and config.kernels
    result.tune.enabled = config.compiler_opt and config.tune
    return result

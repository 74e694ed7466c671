"""Options of `accelerate()`, a tree that callers change in place: `config.compute.bf16 = True`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gallery_lib.config.options import option
from gallery_lib.config.training import TrainConfig


@dataclass(slots=True)
class Compute:
    """Precision, own CUDA kernels, and the implementation of the optimizer."""

    fp16: bool = False
    """The training runs under float16 autocast, with a GradScaler of its own."""
    bf16: bool = False
    """The training runs under bfloat16 autocast, which stays in your loop."""
    kernels: bool = True
    """Use own CUDA kernels. Switch them off to compare, or where one fails."""
    optimizer: bool = True
    """Give the optimizer its fastest form, fused or sync-free. Updates differ by rounding."""


@dataclass(slots=True)
class Compiler:
    """Compiler behind the accelerated backend."""

    enabled: bool = True
    """Compile the model. The first step waits for the compiler; a short run never earns that back.
    """
    backend: str = "inductor"
    """Backend of torch.compile; inductor alone has what the other options switch."""
    cuda_graphs: bool = True
    """On CUDA, capture compiled graphs of static shapes and replay them. Needs more memory."""
    without: tuple[str, ...] = ()
    """Graph passes to leave out: names of `gallery_lib.compiler.passes`. With mixed_products a
    weight must not change between a forward pass and its backward pass."""


@dataclass(slots=True)
class Memory:
    """Memory format of tensors, and the allocator of host memory."""

    layout: Literal["auto", "contiguous", "channels_last"] = "auto"
    """Memory format of 4-d weights and inputs. auto is channels_last for models with 2-d
    convolutions, except on x86 without AVX-512."""
    allocator: bool = True
    """Keep large host blocks instead of returning them to the kernel. Holds more memory."""


@dataclass(slots=True)
class Loader:
    """Transfer of batches to the device: prefetch, worker priority and sharding."""

    prefetch: int = option(2, minimum=0)
    """Batches copied to the GPU ahead of their use. More take device memory."""
    nice: int = option(19, minimum=0, maximum=19)
    """On a CPU, niceness of the processes that load data, so that steps have the cores."""
    shard: Literal["auto", "always", "never"] = "auto"
    """Whether each process takes its share of the batches (always), or all that its loader yields
    (never). auto: its share, unless the loader has a DistributedSampler; streams are refused."""


@dataclass(slots=True)
class Comm:
    """Gradient averaging in DDP; all but `wire` change only the order of sums."""

    bucket_mb: float | None = option(None, minimum=0.001)
    """MiB of a gradient bucket. Smaller ones start earlier and cost more messages. Default: DDP's
    own, a first one of 1, then 25."""
    bucket_views: bool = False
    """Let gradients lie in the buckets, which saves a copy. The next step overwrites them."""
    find_unused_parameters: bool = False
    """Look in each step for parameters that the loss does not depend on; without it, a step that
    leaves some out is an error. Costs a walk over the graph."""
    streams: int = option(1, maximum=8)
    """Buckets on their way at once, each on a process group of its own."""
    hierarchical: bool = False
    """On CPUs, add up within each host first, then between hosts. For slow links between hosts."""
    tune: bool = False
    """Let lossless strategies take turns over the first steps, and use the fastest if it certainly
    beats DDP's own."""
    wire: Literal["exact", "bf16", "fp16", "int8"] = "exact"
    """What is sent: gradients as they are, rounded, or as int8 with a scale for every 256. For slow
    networks; changes the training."""
    error_feedback: bool = True
    """With int8, send what rounding loses the next time. Costs the gradients' size in fp32."""


@dataclass(slots=True)
class Config:
    """Options of `accelerate(model, loader, config)`. Defaults: all that is known to help is on."""

    compute: Compute = field(default_factory=Compute)
    """Precision and kernels."""
    compiler: Compiler = field(default_factory=Compiler)
    """The compiler."""
    memory: Memory = field(default_factory=Memory)
    """Memory layout and allocator."""
    loader: Loader = field(default_factory=Loader)
    """The way of batches to the device."""
    comm: Comm = field(default_factory=Comm)
    """Averaging of gradients over processes."""
    tune: bool = False
    """At the first training step, let layouts and compilers take turns on the batch, and use the
    fastest that computes the same. The choice is kept for the next time."""

    @staticmethod
    def plain() -> Config:
        """Return the baseline: device placement, sharding and DistributedDataParallel only."""
        return Config(
            compute=Compute(kernels=False, optimizer=False),
            compiler=Compiler(enabled=False),
            memory=Memory(layout="contiguous", allocator=False),
            loader=Loader(nice=0),
        )


def backend_config(config: TrainConfig) -> Config:
    """Return the `accelerate()` configuration that a training run asks for."""
    result = Config() if config.compiler_opt else Config.plain()
    result.compute.kernels = config.compiler_opt and config.kernels
    result.tune = config.compiler_opt and config.tune
    return result

"""Options of `accelerate()`, a tree that callers change in place: `config.compute.bf16 = True`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import Settable, option
from gallery_lib.config.training import TrainConfig


@dataclass
class Compute(Settable):
    """Precision, own CUDA kernels, and the implementation of the optimizer."""

    fp16: bool = option(
        False, "the caller trains under float16 autocast (and a GradScaler of their own)"
    )
    bf16: bool = option(False, "the caller trains under bfloat16 autocast")
    kernels: bool = option(True, "own CUDA kernels")
    optimizer: bool = option(
        True,
        "give the optimizer that accelerate() gets its fastest form: one pass over memory or "
        "torch's fused one on the CPU, sync-free or fused on CUDA; values differ in rounding",
    )


@dataclass
class Compiler(Settable):
    """Compiler behind the accelerated backend."""

    enabled: bool = option(True, "compile the model")
    backend: str = option("inductor", "name in the registry of compiler backends")
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        option("default", "torch.compile's mode")
    )
    keep_activations: float = option(
        1.0,
        "part of the activations that are kept for the backward pass; "
        "the rest is computed again, where memory is short",
        minimum=0,
        maximum=1,
    )
    any_threads: bool = option(
        False,
        "on the CPU, generate code for any number of threads, so that runs on one and on several "
        "processes share what was compiled",
    )
    repeated_blocks_once: bool = option(
        False,
        "compile blocks that a model repeats, such as a transformer's layers, once, each as a "
        "graph of its own: half the wait for the compiler, and somewhat slower steps",
    )
    short_attention: bool = option(
        True,
        "on the CPU, compute attention over short sequences as plain products, instead of by "
        "torch's fused operator, which takes longer",
    )
    small_convolutions: bool = option(
        True,
        "on a CPU with AVX512-BF16, compute bfloat16 convolutions over few positions as matrix "
        "products, which are faster there",
    )
    whole_upsampling: bool = option(
        True,
        "on the CPU, enlarge images by torch's operator (bilinear, bicubic), whose gradient the "
        "compiler would add up pixel by pixel",
    )
    bf16_on_fp32_units: bool = option(
        True,
        "on a CPU without bfloat16 units, "
        "do bfloat16 products on the fp32 units instead of emulating them",
    )


@dataclass
class Memory(Settable):
    """Memory format of tensors, and the allocator of host memory."""

    layout: Literal["auto", "contiguous", "channels_last"] = option(
        "auto",
        "memory format of 4-d weights and inputs; auto is channels_last for models with 2-d "
        "convolutions, except on x86 without AVX-512",
    )
    allocator: bool = option(
        True,
        "keep large host blocks instead of returning them to the kernel every step (processes "
        "started by the launcher)",
    )


@dataclass
class Loader(Settable):
    """Transfer of batches to the device: prefetch, padding, worker priority and sharding."""

    prefetch: int = option(
        2, "batches copied to the GPU ahead of their use", unit="batches", minimum=0
    )
    buckets: tuple[int, ...] = option(
        (),
        "lengths that batches are padded to; none: batches stay as they are",
        unit="tokens or frames",
    )
    pad_values: dict[str | int, float] = option(
        dict, "what fills the parts of a batch that have a length, by name or position"
    )
    nice: int = option(
        19,
        "on the CPU: niceness of the processes that load data, "
        "so that the step's threads have the cores; 0: as they are",
        minimum=0,
        maximum=19,
    )
    shard: Literal["auto", "always", "never"] = option(
        "auto",
        "with several processes: whether each takes its share of the batches, or all that the "
        "loader yields; auto: its share, unless the loader is found to be divided already",
    )


@dataclass
class Tune(Settable):
    """Choice of layout and compiler by measurement, at the first training step."""

    enabled: bool = option(
        False,
        "let candidates take turns on the first batch and use the fastest that computes the same",
    )
    rounds: int = option(6, "turns that each candidate gets", unit="turns", minimum=4)
    block_steps: int = option(
        3,
        "forward and backward passes in a turn; the first is not counted",
        unit="passes",
        minimum=2,
    )
    confidence: float = option(
        0.99, "confidence level of a candidate's gain", minimum=0.5, maximum=0.9999
    )
    keep: bool = option(True, "keep the choice in a file, and use it next time")


@dataclass
class Comm(Settable):
    """Gradient averaging in DDP; all but `wire` and `non_finite` change only the order of sums."""

    bucket_mb: float | None = option(
        None,
        "size of the buckets that are sent; default: DDP's own, a first one of 1, then 25",
        unit="MiB",
        minimum=0.001,
    )
    first_bucket_mb: float | None = option(
        None,
        "size of the one that is sent first; default: as with bucket_mb, 1 where that is left out",
        unit="MiB",
        minimum=0.001,
    )
    bucket_views: bool = option(
        False,
        "gradients lie in the buckets, which saves a copy; "
        "one that is kept over a step is overwritten by the next",
    )
    find_unused_parameters: bool = option(
        False,
        "look in each step for parameters that the loss does not depend on, and go on without "
        "their gradients; costs a walk over the graph in each step, "
        "and without it such a step is an error",
    )
    static_graph: bool = option(
        False, "the same parameters are used in every step, in the same order"
    )
    streams: int = option(
        1,
        "buckets on their way at the same time, on process groups of their own",
        minimum=1,
        maximum=8,
    )
    hierarchical: bool = option(
        False,
        "add up within each host first; "
        "then the processes of a host exchange a part each with other hosts",
    )
    tune: bool = option(
        False,
        "let lossless ways take turns over the first steps, "
        "and use the fastest if it certainly beats DDP's own",
    )
    wire: Literal["exact", "bf16", "fp16", "int8", "powersgd"] = option(
        "exact",
        "what is sent: gradients as they are, rounded, as int8 with a scale for every 256, or as "
        "products of narrow matrices; "
        "double precision is rounded alike, sparse gradients are sent as they are",
    )
    error_feedback: bool = option(
        True, "with int8, what rounding loses is sent along the next time"
    )
    powersgd_rank: int = option(4, "columns of those matrices", minimum=1, maximum=4096)
    non_finite: Literal["ignore", "skip", "stop"] = option(
        "ignore",
        "when a gradient is infinite or not a number: nothing (a GradScaler sees to it), or rank "
        "and parameter are named, and no parameter has a gradient in that step, so that optimizers "
        "change nothing, or an error ends the run",
    )


@dataclass
class Config(Settable):
    """Options of `accelerate(model, loader, config)`. Defaults: all that is known to help is on."""

    compute: Compute = option(Compute, "precision and kernels")
    compiler: Compiler = option(Compiler, "the compiler")
    memory: Memory = option(Memory, "memory layout and allocator")
    loader: Loader = option(Loader, "the way of batches to the device")
    comm: Comm = option(Comm, "averaging of gradients over processes")
    tune: Tune = option(Tune, "choice by measurement")

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
    result.tune.enabled = config.compiler_opt and config.tune
    return result

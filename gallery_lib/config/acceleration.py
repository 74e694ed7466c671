"""Options of `accelerate()`, a tree that callers change in place: `config.compute.bf16 = True`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.compiler import Compiler
from gallery_lib.config.options import option
from gallery_lib.config.settable import Settable
from gallery_lib.config.training import TrainConfig


@dataclass
class Compute(Settable):
    """Precision, own CUDA kernels, and the implementation of the optimizer."""

    fp16: bool = option(
        False, "Say that the training runs under float16 autocast, with a GradScaler of its own."
    )
    bf16: bool = option(
        False,
        "Say that the training runs under bfloat16 autocast, which stays in your loop. A first "
        "step without it is announced.",
    )
    kernels: bool = option(
        True, "Use own CUDA kernels. Switch them off to compare, or where one fails."
    )
    optimizer: bool = option(
        True,
        "Give the optimizer its fastest form: one pass over memory or torch's fused one "
        "on a CPU, torch's fused one on CUDA, and sync-free there with fp16. Updates "
        "differ by rounding.",
    )
    cudnn_benchmark: bool = option(
        True,
        "On CUDA, let cuDNN measure its algorithms for each shape and use the fastest. Left alone "
        "where deterministic algorithms are asked for.",
    )


@dataclass
class Memory(Settable):
    """Memory format of tensors, and the allocator of host memory."""

    layout: Literal["auto", "contiguous", "channels_last"] = option(
        "auto",
        "Memory format of 4-d weights and inputs. auto is channels_last for models with "
        "2-d convolutions, except on x86 without AVX-512.",
    )
    allocator: bool = option(
        True,
        "Keep large host blocks instead of returning them to the kernel in every step. "
        "Holds more memory. Processes of the launcher use huge pages as well.",
    )


@dataclass
class Loader(Settable):
    """Transfer of batches to the device: prefetch, padding, worker priority and sharding."""

    prefetch: int = option(
        2,
        "Batches copied to the GPU ahead of their use. Raise it where steps wait for "
        "data. Each takes device memory.",
        unit="batches",
        minimum=0,
    )
    buckets: tuple[int, ...] = option(
        (),
        "Lengths that batches are padded to, so that the compiler sees few shapes. "
        "None: batches stay as they are. Padding is computed, too.",
        unit="tokens or frames",
    )
    pad_values: dict[str | int, float] = option(
        dict,
        "What fills the parts of a batch that have a length, by name or position. "
        "Needed with buckets.",
    )
    nice: int = option(
        19,
        "On a CPU, niceness of the processes that load data, so that the step's threads "
        "have the cores. 0: unchanged.",
        minimum=0,
        maximum=19,
    )
    shard: Literal["auto", "always", "never"] = option(
        "auto",
        "Whether each of several processes takes its share of the batches (always) or "
        "all that its loader yields (never). auto: its share, unless the loader turns "
        "out to be divided already.",
    )


@dataclass
class Tune(Settable):
    """Choice of layout and compiler by measurement, at the first training step."""

    enabled: bool = option(
        False,
        "Let layouts and compilers take turns on the first batch, and use the fastest "
        "that computes the same. The first step takes longer.",
    )
    rounds: int = option(
        6,
        "Turns of each candidate. More turns tell smaller differences apart, and take longer.",
        unit="turns",
        minimum=4,
    )
    block_steps: int = option(
        3,
        "Forward and backward passes in a turn. The first does not count.",
        unit="passes",
        minimum=2,
    )
    confidence: float = option(
        0.99, "Confidence level that a candidate's gain must reach.", minimum=0.5, maximum=0.9999
    )
    keep: bool = option(True, "Keep the choice in a file, and use it next time.")


@dataclass
class Comm(Settable):
    """Gradient averaging in DDP; all but `wire` and `non_finite` change only the order of sums."""

    bucket_mb: float | None = option(
        None,
        "Size of the gradient buckets that are sent. Smaller ones start earlier and "
        "cost more messages. Default: DDP's own, a first one of 1, then 25.",
        unit="MiB",
        minimum=0.001,
    )
    first_bucket_mb: float | None = option(
        None,
        "Size of the bucket that is sent first. Default: as bucket_mb; 1 where that is left out.",
        unit="MiB",
        minimum=0.001,
    )
    bucket_views: bool = option(
        False,
        "Let gradients lie in the buckets, which saves a copy. A gradient kept over a "
        "step is overwritten by the next.",
    )
    find_unused_parameters: bool = option(
        False,
        "Look in each step for parameters that the loss does not depend on. Needed "
        "where a step leaves some out: without it such a step is an error. Costs a walk "
        "over the graph in each step.",
    )
    static_graph: bool = option(
        False,
        "Promise that every step uses the same parameters in the same order. DDP then "
        "skips checks.",
    )
    streams: int = option(
        1,
        "Buckets on their way at the same time, each on a process group of its own. "
        "More may help where one connection does not fill the network.",
        minimum=1,
        maximum=8,
    )
    hierarchical: bool = option(
        False,
        "Add up within each host first; then the processes of a host exchange a part "
        "each with other hosts. Pays where links between hosts are the slow ones.",
    )
    tune: bool = option(
        False,
        "Let lossless ways take turns over the first steps, and use the fastest if it "
        "certainly beats DDP's own.",
    )
    wire: Literal["exact", "bf16", "fp16", "int8", "powersgd"] = option(
        "exact",
        "What is sent: gradients as they are, rounded, as int8 with a scale for every "
        "256, or as products of narrow matrices. For slow networks; changes the "
        "training. Double precision is rounded alike; sparse gradients are sent as they "
        "are.",
    )
    error_feedback: bool = option(
        True,
        "With int8, send what rounding loses along the next time. Costs memory of the "
        "gradients' size in fp32.",
    )
    powersgd_rank: int = option(
        4,
        "With powersgd, columns of the matrices. More are closer to the gradient, and more bytes.",
        minimum=1,
        maximum=4096,
    )
    non_finite: Literal["ignore", "skip", "stop"] = option(
        "ignore",
        "What happens when a gradient is infinite or not a number. ignore: nothing (a "
        "GradScaler sees to it). skip: rank and parameter are named, and no parameter "
        "has a gradient in that step, so that optimizers change nothing. stop: an error "
        "ends the run.",
    )


@dataclass
class Config(Settable):
    """Options of `accelerate(model, loader, config)`. Defaults: all that is known to help is on."""

    compute: Compute = option(Compute, "Precision and kernels.")
    compiler: Compiler = option(Compiler, "The compiler.")
    memory: Memory = option(Memory, "Memory layout and allocator.")
    loader: Loader = option(Loader, "The way of batches to the device.")
    comm: Comm = option(Comm, "Averaging of gradients over processes.")
    tune: Tune = option(Tune, "Choice by measurement.")

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

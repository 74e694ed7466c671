"""Every option of the gallery, declared once.

A dataclass per subject; each field says what it means, in which unit, and what it may be. The command lines, the
check of notebook parameters, the notebooks' parameters cells and the documentation's tables all come from here
(options.py says how); nothing else parses or defaults an option. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.options import Settable, option

_NO_LOSS_PARITY = (
    "it keeps half-precision weights, whose training is not the baseline's, and PyTorch has no such mode. Use O1 (autocast) or O0 (fp32)."
)

# --------------------------------------------------------------------------------------------------------------
# One training run


@dataclass(frozen=True)
class TrainConfig:
    """One training run: what `train()` does and `launch_single_task.py` asks for."""

    model: str = option("resnet50", "task to train: a name from `gallery list`, or FILE.py:NAME for a task of your own")
    compiler_opt: bool = option(False, "switch the accelerated backend on")
    kernels: bool = option(True, "own CUDA kernels, inside the accelerated backend")
    tune: bool = option(False, "inside the accelerated backend, choose layout and compiler by measurement at the first step")
    amp_level: Literal["O0", "O1"] = option(
        "O0",
        "O0 is fp32; O1 is autocast, with gradient scaling where the dtype is fp16",
        refused={"O2": _NO_LOSS_PARITY, "O3": _NO_LOSS_PARITY},
    )
    amp_dtype: Literal["auto", "bf16", "fp16"] = option(
        "auto", "dtype of autocast under O1; auto is bf16 where the device computes in it, else fp16 on CUDA"
    )
    batch_size: int | None = option(None, "samples per process and step; default: the task's own", unit="samples", minimum=1)
    image_size: int | None = option(None, "height and width of input images; default: the task's own", unit="pixels", minimum=32)
    sequence_length: int | None = option(None, "tokens or frames per sample; default: the task's own", unit="tokens or frames", minimum=8)
    epochs: int | None = option(None, "passes over the training data; default: 1, or as many as max_steps takes", unit="epochs", minimum=1)
    max_steps: int | None = option(None, "stop after this many steps; default: at the end of the last epoch", unit="steps", minimum=1)
    warmup_steps: int = option(3, "first steps, left out of steady-state figures", unit="steps", minimum=0)
    lr: float | None = option(None, "learning rate; default: the task's own", minimum=0.0)
    weight_decay: float | None = option(None, "weight decay; default: the task's own", minimum=0.0)
    max_grad_norm: float | None = option(None, "clip gradients to this L2 norm of all of them together; default: no clipping", minimum=1e-6)
    evaluate: bool = option(True, "measure the held-out metrics before the run ends")
    save_weights: bool = option(False, "write the trained weights to weights.pt in the run directory")
    data_dir: str | None = option(None, "data folder; default: the mock data that prepare.sh makes")
    workers: int = option(1, "processes that load data, per training process", unit="processes", minimum=0)
    threads: int | None = option(None, "CPU threads per process; default: cores / processes on this host", unit="threads", minimum=1)
    seed: int = option(0, "seed of weights, shuffling and augmentation", minimum=0)
    log_interval: int = option(10, "steps between two log lines", unit="steps", minimum=1)
    tensorboard: bool = option(False, "write TensorBoard events into the run directory as well")
    run_dir: str | None = option(None, "run directory, must not hold a finished run; default: a new one below runs/")


@dataclass(frozen=True)
class LaunchConfig:
    """Where a run's processes start: the options of torchrun that matter here."""

    nproc_per_node: int = option(
        1, "training processes on this host; at most one per device (GPU, else CPU core)", unit="processes", minimum=1
    )
    nnodes: int = option(1, "hosts that take part", unit="hosts", minimum=1)
    node_rank: int = option(0, "this host's number among them, from 0", minimum=0)
    master_addr: str = option("127.0.0.1", "address of host 0")
    master_port: int | None = option(None, "port on host 0; default: a free one (one host), 29400 (several)", minimum=1, maximum=65535)
    dry_run: bool = option(False, "print the torchrun command and end")


@dataclass(frozen=True)
class CompareConfig:
    """How two variants are compared (see measure/compare.py)."""

    rounds: int = option(16, "turns that each variant gets; the interval comes from these", unit="turns", minimum=4)
    block_steps: int = option(4, "steps in one turn; the first of each is not counted", unit="steps", minimum=2)
    parity_steps: int = option(3, "first steps checked against a float64 run", unit="steps", minimum=1)
    confidence: float = option(0.99, "confidence level of the speed-up's interval", minimum=0.5, maximum=0.9999)


# --------------------------------------------------------------------------------------------------------------
# accelerate(): a tree that is meant to be changed in place, `config.compute.bf16 = True`


@dataclass
class Compute(Settable):
    """Precision, and own kernels."""

    fp16: bool = option(False, "the caller trains under float16 autocast (and a GradScaler of their own)")
    bf16: bool = option(False, "the caller trains under bfloat16 autocast")
    kernels: bool = option(True, "own CUDA kernels")


@dataclass
class Compiler(Settable):
    """The compiler behind the accelerated backend."""

    enabled: bool = option(True, "compile the model")
    backend: str = option("inductor", "name in the registry of compiler backends")
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = option("default", "torch.compile's mode")
    keep_activations: float = option(
        1.0,
        "part of the activations that are kept for the backward pass; the rest is computed again, where memory is short",
        minimum=0,
        maximum=1,
    )
    any_threads: bool = option(
        False, "on the CPU, generate code for any number of threads, so that runs on one and on several processes share what was compiled"
    )
    bf16_on_fp32_units: bool = option(
        True, "on a CPU without bfloat16 units, do bfloat16 products on the fp32 units instead of emulating them"
    )


@dataclass
class Memory(Settable):
    """Where tensors lie."""

    layout: Literal["auto", "contiguous", "channels_last"] = option(
        "auto", "memory format of 4-d weights and inputs; auto is channels_last for models with 2-d convolutions"
    )
    allocator: bool = option(
        True, "keep large host blocks instead of returning them to the kernel every step (processes started by the launcher)"
    )


@dataclass
class Loader(Settable):
    """How batches come to the device."""

    prefetch: int = option(2, "batches copied to the GPU ahead of their use", unit="batches", minimum=0)
    buckets: tuple[int, ...] = option((), "lengths that batches are padded to; none: batches stay as they are", unit="tokens or frames")
    pad_values: dict[str | int, float] = option(dict, "what fills the parts of a batch that have a length, by name or position")


@dataclass
class Tune(Settable):
    """Choice by measurement, at the first training step."""

    enabled: bool = option(False, "let candidates take turns on the first batch and use the fastest that computes the same")
    rounds: int = option(6, "turns that each candidate gets", unit="turns", minimum=4)
    block_steps: int = option(3, "forward and backward passes in a turn; the first is not counted", unit="passes", minimum=2)
    confidence: float = option(0.99, "confidence level of a candidate's gain", minimum=0.5, maximum=0.9999)
    keep: bool = option(True, "keep the choice in a file, and use it next time")


@dataclass
class Comm(Settable):
    """How DistributedDataParallel averages gradients. All but `wire` changes no more than the order in which they are added up."""

    bucket_mb: float | None = option(
        None, "size of the buckets that are sent; default: DDP's own, a first one of 1, then 25", unit="MiB", minimum=0.001
    )
    bucket_views: bool = option(False, "gradients lie in the buckets, which saves a copy of them")
    static_graph: bool = option(False, "the same parameters are used in every step, in the same order")
    streams: int = option(1, "buckets on their way at the same time, on process groups of their own", minimum=1, maximum=8)
    hierarchical: bool = option(False, "add up within each host first; then the processes of a host exchange a part each with other hosts")
    tune: bool = option(False, "let lossless ways take turns over the first steps, and use the fastest if it certainly beats DDP's own")
    wire: Literal["exact", "bf16", "fp16", "int8", "powersgd"] = option(
        "exact", "what is sent: gradients as they are, rounded, as int8 with a scale for every 256, or as products of narrow matrices"
    )
    error_feedback: bool = option(True, "with int8, what rounding loses is sent along the next time")
    powersgd_rank: int = option(4, "columns of those matrices", minimum=1)
    non_finite: Literal["ignore", "stop"] = option(
        "ignore", "when a gradient is infinite or not a number: nothing, or an error that names rank and parameter"
    )


@dataclass
class Config(Settable):
    """What `accelerate(model, loader, config)` does. `Config()` switches everything on that is known to help."""

    compute: Compute = option(Compute, "precision and kernels")
    compiler: Compiler = option(Compiler, "the compiler")
    memory: Memory = option(Memory, "memory layout and allocator")
    loader: Loader = option(Loader, "the way of batches to the device")
    comm: Comm = option(Comm, "averaging of gradients over processes")
    tune: Tune = option(Tune, "choice by measurement")

    @staticmethod
    def plain() -> Config:
        """Device placement, sharding and DistributedDataParallel only: the baseline."""
        return Config(compute=Compute(kernels=False), compiler=Compiler(enabled=False), memory=Memory(layout="contiguous", allocator=False))

    @property
    def accelerated(self) -> bool:
        """Whether any of the accelerated backend is on."""
        return self.compiler.enabled or self.compute.kernels or self.memory.layout != "contiguous" or self.memory.allocator


def backend_config(config: TrainConfig) -> Config:
    """The accelerate() configuration that a training run asks for."""
    result = Config() if config.compiler_opt else Config.plain()
    result.compute.kernels = config.compiler_opt and config.kernels
    result.tune.enabled = config.compiler_opt and config.tune
    return result


# --------------------------------------------------------------------------------------------------------------
# Notebooks


@dataclass(frozen=True)
class NotebookConfig:
    """The parameters of a task's notebook."""

    profile: Literal["auto", "quick", "full"] = option(
        "auto", "quick is minutes on two cores, full is the task at its real size; auto is full on a GPU, else quick"
    )
    amp_level: Literal["auto", "O0", "O1"] = option(
        "auto",
        "precision of both variants; auto is O1 where the device computes in bf16 or fp16, else O0",
        refused={"O2": _NO_LOSS_PARITY, "O3": _NO_LOSS_PARITY},
    )
    amp_dtype: Literal["auto", "bf16", "fp16"] = option("auto", "dtype of autocast under O1")
    batch_size: int | None = option(None, "samples per process and step; default: the profile's", unit="samples", minimum=1)
    image_size: int | None = option(None, "height and width of input images; default: the profile's", unit="pixels", minimum=32)
    sequence_length: int | None = option(None, "tokens or frames per sample; default: the profile's", unit="tokens or frames", minimum=8)
    processes: int | None = option(
        None, "processes of the comparison on several; default: one per device, at most 8", unit="processes", minimum=1
    )
    rounds: int | None = option(None, "turns that each variant gets; default: the profile's", unit="turns", minimum=4)
    block_steps: int | None = option(None, "steps in one turn; default: the profile's", unit="steps", minimum=2)
    data_dir: str | None = option(None, "data folder; default: the mock data that prepare.sh makes")
    seed: int = option(0, "seed of weights, shuffling and augmentation", minimum=0)


@dataclass(frozen=True)
class WalkConfig:
    """The parameters of the notebook data_parallel; sizes default to the seed's on a GPU, to small ones on a CPU."""

    images: int | None = option(None, "random training images; default: 6400 on a GPU, else 128", unit="images", minimum=8)
    image_size: int | None = option(
        None, "height and width of the images; default: 224 on a GPU, else 64", unit="pixels", minimum=32, maximum=1024
    )
    batch_size: int | None = option(None, "samples per process and step; default: 64 on a GPU, else 8", unit="samples", minimum=1)
    epochs: int = option(2, "passes over the images", unit="epochs", minimum=1)
    log_steps: int = option(5, "steps between two lines of the log", unit="steps", minimum=1)
    processes: int | None = option(None, "processes of the parallel runs; default: one per device, at most 8", unit="processes", minimum=1)


@dataclass(frozen=True)
class WireConfig:
    """The parameters of the notebook communication."""

    model: str = option("resnet50", "task whose gradients are counted in bytes, in each wire format")
    hosts: int = option(2, "hosts of the lab, on this machine, with emulated links", unit="hosts", minimum=2, maximum=8)
    processes: int = option(1, "training processes on each host of the lab", unit="processes", minimum=1, maximum=8)
    rate: str = option("200mbit", "rate of each host's link, in either direction, in bits per second")
    width: int = option(512, "width of the four layers that are trained on the lab", unit="units", minimum=16, maximum=8192)
    rounds: int = option(4, "turns that each technique gets; the intervals come from these", unit="turns", minimum=4)
    block_steps: int = option(3, "counted steps in one turn", unit="steps", minimum=1)
    seeds: int = option(2, "how often each wire format learns digits, each time from other weights", unit="seeds", minimum=2)
    epochs: int = option(8, "passes over the digits", unit="epochs", minimum=1)


@dataclass(frozen=True)
class BatchConfig:
    """How `gallery run` runs notebooks."""

    profile: Literal["quick", "full"] | None = option(
        None, "parameters from notebooks/profiles/, for the notebooks that have them; default: the notebooks' own"
    )
    jobs: int = option(
        1,
        "notebooks at a time, each on its share of the cores or GPUs; they disturb each other's figures",
        unit="notebooks",
        minimum=1,
    )
    deadline: float | None = option(None, "end a notebook that takes longer; default: wait", unit="seconds", minimum=1)
    retries: int = option(0, "how often a notebook that did not pass is run again", unit="times", minimum=0)
    memory_limit: float | None = option(
        None, "end a notebook whose processes together hold more; default: no limit", unit="GiB", minimum=0.01
    )
    resume: bool = option(False, "go on in --out: keep what passed with the same notebook, parameters, package and versions")
    out: str | None = option(None, "folder of the executed notebooks and reports; default: a new one below runs/")


@dataclass(frozen=True)
class SiteConfig:
    """What `gallery site` builds."""

    run: str | None = option(None, "folder of `gallery run` whose notebooks are shown with their outputs; default: none are")
    out: str | None = option(None, "folder of the site; one that is there is replaced; default: build/site in the checkout")


# --------------------------------------------------------------------------------------------------------------
# gallery bench


@dataclass(frozen=True)
class BenchConfig:
    """How `gallery bench` measures (see measure/bench.py)."""

    variants: str | None = option(
        None, "which variants, with commas between; default: all. eager-O1, which they are held against, is always in"
    )
    waterfall: str | None = option(None, "instead: this task with one technique after another switched on")
    profile: Literal["auto", "quick", "full"] = option(
        "auto", "sizes of the tasks: quick is for a few cores; auto is full on a GPU, else quick"
    )
    batch_size: int | None = option(None, "samples a step; default: the profile's", unit="samples", minimum=1)
    image_size: int | None = option(None, "height and width of input images; default: the profile's", unit="pixels", minimum=32)
    sequence_length: int | None = option(None, "tokens or frames per sample; default: the profile's", unit="tokens or frames", minimum=8)
    workers: int = option(1, "processes that load data, per training process", unit="processes", minimum=0)
    threads: int | None = option(None, "CPU threads per process; default: all cores", unit="threads", minimum=1)
    rounds: int | None = option(None, "turns that each variant gets; default: the profile's", unit="turns", minimum=4)
    block_steps: int | None = option(None, "steps in one turn, the first not counted; default: the profile's", unit="steps", minimum=2)
    parity_steps: int | None = option(None, "first steps checked against a float64 run; default: the profile's", unit="steps", minimum=1)
    confidence: float = option(0.99, "confidence level of the intervals", minimum=0.5, maximum=0.9999)
    alive: int | None = option(
        None,
        "variants that are alive and take turns at a time; default: as many as fit into memory, 2 on a GPU",
        unit="variants",
        minimum=2,
    )
    fused: bool = option(False, "give torch's fused optimizer, one of our techniques, to every variant")
    data_dir: str | None = option(None, "data folder; default: the mock data that prepare.sh makes")
    seed: int = option(0, "seed of weights, shuffling and augmentation", minimum=0)
    resume: bool = option(False, "go on in --out: keep the tasks that were measured with the same options, package and versions")
    out: str | None = option(None, "folder of results, tables and plots; default: a new one below runs/")


# --------------------------------------------------------------------------------------------------------------
# Measurements of communication, which are run by the processes of a run (see measure/wire/ways.py and measure/wire/convergence.py)


@dataclass(frozen=True)
class WaysConfig:
    """How ways of averaging gradients take turns."""

    width: int = option(512, "width of the four layers that are trained", unit="units", minimum=16)
    rounds: int = option(4, "turns that each way gets; the intervals come from these", unit="turns", minimum=4)
    block_steps: int = option(3, "counted steps in one turn", unit="steps", minimum=1)
    confidence: float = option(0.99, "confidence level of the intervals", minimum=0.5, maximum=0.9999)
    out: str | None = option(None, "file for the figures, as JSON")


@dataclass(frozen=True)
class ConvergenceConfig:
    """What is learned with every wire format."""

    digits: bool = option(True, "learn scikit-learn's digits, with parameters in common and in mixed units")
    epochs: int = option(8, "passes over the digits", unit="epochs", minimum=1)
    seeds: int = option(4, "how often, each time from other weights", unit="seeds", minimum=2)
    task: str | None = option(None, "a task of the gallery whose loss is compared as well; default: none")
    task_steps: int = option(16, "steps of it; the loss is the mean of the last quarter", unit="steps", minimum=4)
    batch_size: int | None = option(None, "samples a process of it; default: the task's quick setting", unit="samples", minimum=1)
    image_size: int | None = option(None, "height of its images; default: the task's quick setting", unit="pixels", minimum=1)
    sequence_length: int | None = option(None, "length of its sequences; default: the task's quick setting", minimum=1)
    out: str | None = option(None, "file for the figures, as JSON")


# --------------------------------------------------------------------------------------------------------------
# gallery lab


@dataclass(frozen=True)
class LabConfig:
    """What `gallery lab up` makes: hosts on this machine, with emulated links (see cluster/lab/)."""

    hosts: int = option(2, "hosts of the lab", unit="hosts", minimum=1, maximum=64)
    rate: str = option("1gbit", "rate of each host's link, in either direction, in bits per second: 100mbit, 2.5gbit")
    cpus: float | None = option(None, "cores' worth of time for each host; default: an equal part of all", unit="cores", minimum=0.05)
    name: str = option("lab", "name of the lab")


@dataclass(frozen=True)
class LabRunConfig:
    """What `gallery lab run` starts on every host of a lab."""

    nproc_per_node: int = option(1, "processes that torchrun starts on each host", unit="processes", minimum=1)
    torchrun: bool = option(True, "start a Python script over torchrun; without, any command once on each host")
    master_port: int = option(29400, "port on host 0, where the processes meet", minimum=1, maximum=65535)
    name: str = option("lab", "name of the lab")


@dataclass(frozen=True)
class LabNameConfig:
    """Which lab `gallery lab down` takes down."""

    name: str = option("lab", "name of the lab")


# --------------------------------------------------------------------------------------------------------------
# Replays of recorded timelines


@dataclass(frozen=True)
class RecordConfig:
    """What a timeline is made of (see measure/replay/)."""

    steps: int = option(5, "steps that are recorded, after a warm-up; times are medians over them", unit="steps", minimum=3)
    times: float = option(1.0, "multiply all times, for a device that is not recorded; the file says that it is derived", minimum=1e-6)
    reason: str = option("", "with times: what device that is meant to be, and where the factor is from")


@dataclass(frozen=True)
class ReplayConfig:
    """How timelines are replayed, and which ways of averaging gradients take part."""

    stretch: float = option(
        1.0, "waits are multiplied by it, the rate of links divided, and step times divided again", unit="", minimum=1.0, maximum=1000.0
    )
    wires: str = option("exact", "wire formats, with commas between; each is tried in all ways that DDP's gradients can go")
    only: str | None = option(None, "only these ways, with semicolons between, beside DDP's own; default: all")
    rounds: int = option(6, "turns that each way gets", unit="turns", minimum=4)
    block_steps: int = option(4, "counted steps in a turn", unit="steps", minimum=1)

"""Declarations of every option of the gallery: a dataclass per subject.

Each field says what it means, in which unit, and which values it takes. Checks, parameters cells,
command lines and tables (`options.py`) come from here alone. The room needs no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from gallery_lib.config.options import option
from gallery_lib.errors import did_you_mean


@dataclass(frozen=True)
class TrainConfig:
    """Options of one training run, as `train()` and `launch_single_task.py` take them."""

    model: str = "resnet50"
    """Task: a name from `gallery list`, or FILE.py:NAME for a task of your own."""
    compiler_opt: bool = False
    """Switch the accelerated backend on. Training starts later, and its steps are faster."""
    kernels: bool = True
    """Use own kernels in the accelerated backend. Switch them off to compare, or if one fails."""
    tune: bool = False
    """In the accelerated backend, choose layout and compiler by measurement, once."""
    amp_level: Literal["auto", "O0", "O1"] = "auto"
    """O0 is fp32, O1 is autocast, with gradient scaling in fp16. auto is O1 where the device
    computes in bf16 or fp16, else O0."""
    amp_dtype: Literal["auto", "bf16", "fp16"] = "auto"
    """dtype of autocast. auto is bf16 where the device computes in it, else fp16 on CUDA."""
    batch_size: int | None = None
    """Samples per process and step. Default: the task's own."""
    image_size: int | None = option(None, minimum=32)
    """Height and width of input images in pixels. Default: the task's own."""
    sequence_length: int | None = option(None, minimum=8)
    """Tokens or frames per sample. Default: the task's own."""
    epochs: int | None = None
    """Passes over the training data. Default: 1, or as many as max_steps takes."""
    max_steps: int | None = None
    """Stop after this many steps. Default: at the end of the last epoch."""
    warmup_steps: int = option(3, minimum=0)
    """First steps, left out of steady-state figures. Raise it where steps settle late."""
    lr: float | None = None
    """Learning rate. Default: the task's own."""
    weight_decay: float | None = None
    """Weight decay. Default: the task's own."""
    max_grad_norm: float | None = option(None, minimum=1e-6)
    """Clip gradients to this L2 norm of all together. Default: no clipping."""
    lr_schedule: Literal["task", "none", "linear", "cosine"] = "task"
    """Learning rate by step, as in torch.optim.lr_scheduler. linear and cosine fall to 0."""
    lr_warmup_steps: int = option(0, minimum=0)
    """First steps, in which the learning rate rises in a line."""
    lr_schedule_steps: int | None = None
    """Steps of the schedule. Default: those of the run. Give it where a run is to be continued."""
    evaluate: bool = True
    """Measure the held-out metrics before the run ends."""
    pretrained: str | None = None
    """Weights to start from: safetensors, state dict, checkpoint. Misfits stay as drawn, named."""
    data_dir: str | None = None
    """Data folder. Default: the mock data that prepare.sh makes. Image classifiers get an output
    for each class of the folder; without a folder they have ImageNet's 1000."""
    workers: int | None = option(None, minimum=0)
    """Data-loading processes per process. Default: 1; on a GPU cores / processes - 1, up to 16,
    unless less than 1 GiB of shared memory is free."""
    threads: int | None = None
    """CPU threads per process. Default: cores / processes on this host."""
    rank_timeout: float = option(120.0, minimum=5)
    """Seconds without a sign of life from one of several processes, or without a batch, after which
    a run is ended."""
    terminate_on_nan: bool = True
    """End the run, with exit code 1, when its loss is no finite number any more."""
    seed: int = option(0, minimum=0, maximum=2**32 - 1)
    """Seed of weights, shuffling and augmentation. Runs of one seed start alike."""
    log_interval: int = 10
    """Steps between two log lines."""
    run_dir: str | None = None
    """Run directory, without a finished run. Default: a new one below runs/."""
    checkpoint_every: str | None = None
    """Checkpoints in the background, every so many steps (20) or minutes (10min) and at the end."""
    keep: int = 2
    """Newest checkpoints to keep; older ones are deleted."""
    resume: str | None = None
    """Go on from a checkpoint: auto is the newest one of run_dir, if any; else a file, or the
    folder of a run."""


@dataclass(frozen=True)
class LaunchConfig:
    """Options of launching a run's processes, named as torchrun's are."""

    nproc_per_node: int = 1
    """Training processes on this host, at most one per device (GPU, else CPU core)."""
    nnodes: int = option(1, maximum=4096)
    """Hosts, on each of which this command is given."""
    node_rank: int = option(0, minimum=0)
    """This host's number among them, from 0."""
    master_addr: str = "127.0.0.1"
    """Address of host 0, as the other hosts see it."""
    master_port: int | None = option(None, maximum=65535)
    """Port on host 0 of several; one host alone opens none. Default: 29400."""
    max_restarts: int = option(0, minimum=0)
    """Times that the processes are started again from the last checkpoint, on one host."""
    dry_run: bool = False
    """Print the command that starts the processes, and end."""


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
    share_cores: bool = True
    """On a CPU, have waiting threads sleep, not spin, as long as other work wants their cores."""


@dataclass(slots=True)
class Compiler:
    """Compiler behind the accelerated backend."""

    enabled: bool = True
    """Compile the model. The first step waits for the compiler; a short run never earns it back."""
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

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_meant(name, type(self)))

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__dataclass_fields__ and not hasattr(type(self), name):
            raise AttributeError(_meant(name, type(self)))
        object.__setattr__(self, name, value)

    @staticmethod
    def plain() -> Config:
        """Return the baseline: device placement, sharding and DistributedDataParallel only."""
        return Config(
            compute=Compute(kernels=False, optimizer=False, share_cores=False),
            compiler=Compiler(enabled=False),
            memory=Memory(layout="contiguous", allocator=False),
            loader=Loader(nice=0),
        )


def _checked(init: Callable[..., None]) -> Callable[..., None]:
    """Have a name that is no option refused with the one that is meant, as attributes are."""

    @functools.wraps(init)
    def initialize(self: Config, *values: Any, **named: Any) -> None:
        if unknown := named.keys() - Config.__dataclass_fields__:
            raise TypeError(_meant(min(unknown), Config))
        init(self, *values, **named)

    return initialize


Config.__init__ = _checked(Config.__init__)  # type: ignore[method-assign]


def _meant(name: str, config: type[Config]) -> str:
    """Return the message on a name that a Config class lacks, with the option that is meant."""
    subjects = {one.name: one.default_factory for one in fields(config)}
    hint = did_you_mean(name, subjects)
    for subject, options in subjects.items():
        if name in getattr(options, "__dataclass_fields__", ()):
            hint = f" It is config.{subject}.{name}."
    return f"{config.__name__} has no option `{name}`.{hint}"


@dataclass(frozen=True)
class BatchConfig:
    """Options of `gallery run`, which runs notebooks headless."""

    profile: Literal["quick", "full"] | None = None
    """Parameters from notebooks/profiles/. Default: the notebooks' own."""
    deadline: float | None = option(None, minimum=1)
    """Seconds after which a notebook is ended. Default: wait."""
    resume: bool = False
    """Go on with the batch in --out; keep what passed with the same notebook and versions."""
    out: str | None = None
    """Folder of the executed notebooks and reports. Default: a new one below runs/."""


@dataclass(frozen=True)
class RooflineConfig:
    """Options of `gallery roofline`, beside those of training."""

    rounds: int = 8
    """Turns of the limits, a step, and a profiled step. More are steadier, and take longer."""
    out: str | None = None
    """Folder of roofline.json. Default: a new one below runs/."""


@dataclass(frozen=True)
class TryConfig:
    """Options of `gallery try`; they stand before the script, whose own follow it."""

    nproc: int = 1
    """Processes, started by torchrun. A command that starts its own needs none."""
    rounds: int = option(12, minimum=4)
    """Turns of each form. More narrow the interval, and take longer."""
    json: str | None = None
    """JSON file for the result, with the seconds of every step that counts (trial/result.py)."""
    fail_if: Literal["slower"] | None = None
    """Exit code 3 where the accelerated form is surely slower, or with --against the script."""
    html: str | None = None
    """HTML file for the report, one page to send on."""
    against: str | None = None
    """JSON file of an earlier trial: has the script become slower?"""
    scratch: bool = True
    """Run in a copy of the working folder, so that no output is written over."""
    without: str | None = None
    """What to leave out, comma-separated: compile, optimizer, allocator, graph passes; or all."""
    techniques: bool = False
    """Also measure what each part gives, by leaving it out."""
    patience: float = option(300.0, minimum=1.0)
    """Longest wait for a step, in seconds; compilation is part of one."""


@dataclass(frozen=True)
class CompareConfig:
    """Options of comparing two variants (see measure/comparison/compare.py)."""

    rounds: int = option(16, minimum=4)
    """Turns of each variant. More narrow the interval, and take longer."""
    block_steps: int = option(4, minimum=2)
    """Steps in one turn. The first of each does not count."""
    parity_steps: int = 3
    """First steps checked against a float64 run, which is slow."""


@dataclass(frozen=True)
class BenchConfig:
    """Options of `gallery bench`, which measures tasks in several variants (measure/bench.py)."""

    variants: str | None = None
    """Variants, with commas between. The eager one always takes part. Default: all here."""
    amp_level: Literal["auto", "O0", "O1"] = "auto"
    """Precision of all variants. auto is O1 where the device computes in bfloat16, else O0."""
    profile: Literal["auto", "quick", "large", "full"] = "auto"
    """Sizes of the tasks. quick is for a few cores; large has quick's batches with images of 224²
    and sequences of 128. auto is quick; on a GPU full, with a batch that fits into its memory."""
    batch_size: int | None = None
    """Samples per process and step. Default: the profile's."""
    image_size: int | None = option(None, minimum=32)
    """Height and width of input images in pixels. Default: the profile's."""
    sequence_length: int | None = option(None, minimum=8)
    """Tokens or frames per sample. Default: the profile's."""
    workers: int | None = option(None, minimum=0)
    """Data-loading processes per training process. Default: that of a training."""
    threads: int | None = None
    """CPU threads per process. Default: all cores."""
    rounds: int | None = option(None, minimum=4)
    """Turns of each variant. More narrow the interval, and take longer. Default: the profile's."""
    block_steps: int | None = option(None, minimum=2)
    """Steps in one turn. Default: the profile's."""
    data_dir: str | None = None
    """Data folder. Default: the mock data that prepare.sh makes."""
    resume: bool = False
    """Go on with the bench in --out; keep tasks measured with the same options and versions."""
    out: str | None = None
    """Folder of results, tables and plots. Default: a new one below runs/."""


@dataclass(frozen=True)
class LabNameConfig:
    """Options of `gallery lab down`: the lab to take down."""

    name: str = "lab"
    """Name of the lab. Give one to have several labs up."""


@dataclass(frozen=True)
class LabConfig(LabNameConfig):
    """Options of `gallery lab up`: hosts on this machine with emulated links (see cluster/)."""

    hosts: int = option(2, maximum=64)
    """Hosts of the lab."""
    rate: str = "1gbit"
    """Rate of each host's link, in either direction: 100mbit, 2.5gbit."""
    cpus: float | None = option(None, minimum=0.05)
    """Cores' worth of time for each host. Default: an equal part of all."""


@dataclass(frozen=True)
class LabRunConfig(LabNameConfig):
    """Options of `gallery lab run`, which starts a command on every host of a lab."""

    nproc_per_node: int = 1
    """Processes that torchrun starts on each host."""
    torchrun: bool = True
    """Start a Python script over torchrun; --no-torchrun starts any command, once on each host."""


@dataclass(frozen=True)
class StrategiesConfig:
    """Options of a measurement in which strategies of averaging gradients take turns."""

    width: int = option(512, minimum=16)
    """Width of the four layers that are trained."""
    rounds: int = option(4, minimum=4)
    """Turns of each strategy. More narrow the intervals, and take longer."""
    block_steps: int = 3
    """Counted steps in one turn."""
    out: str | None = None
    """File for the figures, as JSON."""


@dataclass(frozen=True)
class ConvergenceConfig:
    """Options of the convergence check, which learns digits with every wire format."""

    epochs: int = 8
    """Passes over the digits."""
    seeds: int = option(4, minimum=2)
    """How often, each time from other weights. More tell smaller differences apart."""
    out: str | None = None
    """File for the scores, as JSON."""


@dataclass(frozen=True)
class ComparedConfig:
    """Parameters of a notebook that compares trainings."""

    profile: Literal["auto", "quick", "full"] = "auto"
    """Sizes: quick is minutes on two cores, full is the task at its real size. auto is quick; on a
    GPU full, with a batch that fits into its memory."""
    amp_level: Literal["auto", "O0", "O1"] = "auto"
    """Precision of both variants. auto is O1 where the device computes in bf16 or fp16, else O0."""
    amp_dtype: Literal["auto", "bf16", "fp16"] = "auto"
    """dtype of autocast under O1."""
    batch_size: int | None = None
    """Samples per process and step. Default: the profile's."""
    rounds: int | None = option(None, minimum=4)
    """Turns of each variant. More narrow the interval, and take longer. Default: the profile's."""
    block_steps: int | None = option(None, minimum=2)
    """Steps in one turn. Default: the profile's."""
    seed: int = option(0, minimum=0, maximum=2**32 - 1)
    """Seed of weights, shuffling and augmentation."""


@dataclass(frozen=True)
class NotebookConfig(ComparedConfig):
    """Parameters of a task's notebook."""

    image_size: int | None = option(None, minimum=32)
    """Height and width of input images in pixels. Default: the profile's."""
    sequence_length: int | None = option(None, minimum=8)
    """Tokens or frames per sample. Default: the profile's."""
    processes: int | None = None
    """Processes of the comparison on several. Default: one per GPU, at most 8; without one, 1."""
    waterfall: bool = False
    """Measure one technique after another. Takes minutes the first time; the result is kept."""
    data_dir: str | None = None
    """Data folder. Default: the mock data that prepare.sh makes."""


@dataclass(frozen=True)
class YourModelConfig(ComparedConfig):
    """Parameters of the notebook your_model: optimizer, precision and sizes of an own task."""

    optimizer: Literal[
        "AdamW", "Adam", "SGD", "RMSprop", "RAdam", "NAdam", "Adamax", "Adagrad", "Adadelta"
    ] = "AdamW"
    """Optimizer of torch.optim. SGD has a momentum of 0.9."""
    learning_rate: float | None = None
    """Learning rate. Default: torch's for the optimizer."""


@dataclass(frozen=True)
class DataParallelNotebookConfig:
    """Parameters of the notebook data_parallel; a GPU takes larger sizes, as its last cell says."""

    images: int = option(32, minimum=8)
    """Random training images."""
    image_size: int = option(48, minimum=32, maximum=1024)
    """Height and width of the images."""
    batch_size: int = 4
    """Samples per process and step."""
    epochs: int = 1
    """Passes over the images."""
    log_steps: int = 1
    """Steps between two lines of the log."""
    processes: int | None = None
    """Processes of the parallel runs. Default: one per device, at most 8."""
    rounds: int = option(8, minimum=4)
    """Turns of each script in the comparison. More narrow the interval, and take longer."""
    block_steps: int = 1
    """Counted steps in one turn."""


@dataclass(frozen=True)
class CommunicationNotebookConfig:
    """Parameters of the notebook communication."""

    hosts: int = option(2, minimum=2, maximum=8)
    """Hosts of the lab, on this machine, with emulated links."""
    processes: int = option(1, maximum=8)
    """Training processes on each host of the lab."""
    rate: str = "200mbit"
    """Rate of each host's link, either way, in bits per second. Lower: wire formats gain more."""
    rounds: int = option(4, minimum=4)
    """Turns of each technique; the intervals come from these. More turns take longer."""
    block_steps: int = 3
    """Counted steps in one turn."""
    epochs: int = 8
    """Passes over the digits that each wire format learns."""


@dataclass(frozen=True)
class PerformanceDataConfig:
    """Parameters of the notebook performance_data."""

    table: str = "benchmarks/results/epyc-avx2-2core/sweep.csv"
    """Table of replayed trainings (CSV) to show."""

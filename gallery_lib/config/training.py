"""Options of a run, and of a run's processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option


@dataclass(frozen=True)
class TrainConfig:
    """Options of one training run, as `train()` and `launch_single_task.py` take them."""

    model: str = "resnet50"
    """Task: a name from `gallery list`, or FILE.py:NAME for a task of your own."""
    compiler_opt: bool = False
    """Switch the accelerated backend on. Training starts later, and its steps are faster."""
    kernels: bool = True
    """Use own kernels in the accelerated backend. Switch them off to compare, or where one fails.
    """
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
    """Weights to start from: safetensors, a state dict, or a checkpoint. What does not fit stays as
    drawn, and is named."""
    data_dir: str | None = None
    """Data folder. Default: the mock data that prepare.sh makes. Image classifiers get an output
    for each class of the folder; without a folder they have ImageNet's 1000."""
    workers: int = option(1, minimum=0)
    """Data-loading processes per training process. On a CPU they share the cores with it."""
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
    """Save a checkpoint every so many steps (20) or minutes (10min), and at the end, in the
    background. Default: none."""
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

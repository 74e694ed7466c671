"""Options of a run, and of a run's processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option

NO_LOSS_PARITY = (
    "it keeps half-precision weights, whose training is not the baseline's, and PyTorch has no "
    "such mode. Use O1 (autocast) or O0 (fp32)."
)
"""Reason why O2 and O3 are not offered."""
_MOST_HOSTS = 4096


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
    amp_level: Literal["auto", "O0", "O1"] = option(
        "auto", refused={"O2": NO_LOSS_PARITY, "O3": NO_LOSS_PARITY}
    )
    """O0 is fp32, O1 is autocast, with gradient scaling in fp16. auto is O1 where the device
    computes in bf16 or fp16, else O0."""
    amp_dtype: Literal["auto", "bf16", "fp16"] = "auto"
    """dtype of autocast. auto is bf16 where the device computes in it, else fp16 on CUDA."""
    batch_size: int | None = option(None, unit="samples")
    """Samples per process and step. Default: the task's own."""
    image_size: int | None = option(None, unit="pixels", minimum=32)
    """Height and width of input images. Default: the task's own."""
    sequence_length: int | None = option(None, unit="tokens or frames", minimum=8)
    """Tokens or frames per sample. Default: the task's own."""
    epochs: int | None = option(None, unit="epochs")
    """Passes over the training data. Default: 1, or as many as max_steps takes."""
    max_steps: int | None = option(None, unit="steps")
    """Stop after this many steps. Default: at the end of the last epoch."""
    warmup_steps: int = option(3, unit="steps", minimum=0)
    """First steps, left out of steady-state figures. Raise it where steps settle late."""
    lr: float | None = option(None, minimum=0.0)
    """Learning rate. Default: the task's own."""
    weight_decay: float | None = option(None, minimum=0.0)
    """Weight decay. Default: the task's own."""
    max_grad_norm: float | None = option(None, minimum=1e-6)
    """Clip gradients to this L2 norm of all together. Default: no clipping."""
    lr_schedule: Literal["task", "none", "linear", "cosine"] = "task"
    """Learning rate by step, as in torch.optim.lr_scheduler. linear and cosine fall to 0."""
    lr_warmup_steps: int = option(0, unit="steps", minimum=0)
    """First steps, in which the learning rate rises in a line."""
    lr_schedule_steps: int | None = option(None, unit="steps")
    """Steps of the schedule. Default: those of the run. Give it where a run is to be continued."""
    label_smoothing: float | None = option(None, minimum=0.0, maximum=1.0)
    """Share of each label spread over all classes, with a cross-entropy. Default: the task's own.
    """
    evaluate: bool = True
    """Measure the held-out metrics before the run ends."""
    save_weights: bool = False
    """Write the trained weights to weights.pt in the run directory."""
    pretrained: str | None = None
    """Weights to start from: safetensors, a state dict, or a checkpoint. What does not fit stays as
    drawn, and is named."""
    data_dir: str | None = None
    """Data folder. Default: the mock data that prepare.sh makes. Image classifiers get an output
    for each class of the folder; without a folder they have ImageNet's 1000."""
    workers: int = option(1, unit="processes", minimum=0)
    """Data-loading processes per training process. On a CPU they share the cores with it."""
    threads: int | None = option(None, unit="threads")
    """CPU threads per process. Default: cores / processes on this host."""
    rank_timeout: float = option(120.0, unit="seconds", minimum=5.0)
    """End a run when one of several processes gives no sign of life for so long, or no batch comes.
    """
    terminate_on_nan: bool = True
    """End the run, with exit code 1, when its loss is no finite number any more."""
    seed: int = option(0, minimum=0, maximum=2**32 - 1)
    """Seed of weights, shuffling and augmentation. Runs of one seed start alike."""
    log_interval: int = option(10, unit="steps")
    """Steps between two log lines."""
    run_dir: str | None = None
    """Run directory, without a finished run. Default: a new one below runs/."""
    checkpoint_every: str | None = None
    """Save a checkpoint every so many steps (20) or minutes (10min), in the background. Default:
    none."""
    keep: int = option(2, minimum=1)
    """Newest checkpoints to keep; older ones are deleted."""
    resume: str | None = None
    """Go on from a checkpoint: auto is the newest whole one of run_dir, if any; else a folder."""


@dataclass(frozen=True)
class LaunchConfig:
    """Options of launching a run's processes, named as torchrun's are."""

    nproc_per_node: int = option(1, unit="processes")
    """Training processes on this host, at most one per device (GPU, else CPU core)."""
    nnodes: int = option(1, unit="hosts", maximum=_MOST_HOSTS)
    """Hosts, on each of which this command is given."""
    node_rank: int = option(0, minimum=0)
    """This host's number among them, from 0."""
    master_addr: str = "127.0.0.1"
    """Address of host 0, as the other hosts see it."""
    master_port: int | None = option(None, minimum=1, maximum=65535)
    """Port on host 0 of several; one host alone opens none. Default: 29400."""
    max_restarts: int = option(0, unit="times", minimum=0)
    """Times that the processes are started again from the last checkpoint, on one host."""
    dry_run: bool = False
    """Print the command that starts the processes, and end."""

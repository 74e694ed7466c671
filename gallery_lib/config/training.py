"""Options of a run, and of a run's processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option
from gallery_lib.errors import InputError

NO_LOSS_PARITY = (
    "it keeps half-precision weights, whose training is not the baseline's, and PyTorch has no "
    "such mode. Use O1 (autocast) or O0 (fp32)."
)
"""Reason why O2 and O3 are not offered."""
_MOST_HOSTS = 4096


@dataclass(frozen=True)
class TrainConfig:
    """Options of one training run, as `train()` and `launch_single_task.py` take them."""

    model: str = option(
        "resnet50", "Task: a name from `gallery list`, or FILE.py:NAME for a task of your own."
    )
    compiler_opt: bool = option(
        False, "Switch the accelerated backend on. Training starts later, and its steps are faster."
    )
    kernels: bool = option(
        True,
        "Use own kernels in the accelerated backend. Switch them off to compare, or where one "
        "fails.",
    )
    tune: bool = option(
        False, "In the accelerated backend, choose layout and compiler by measurement, once."
    )
    amp_level: Literal["auto", "O0", "O1"] = option(
        "auto",
        "O0 is fp32, O1 is autocast, with gradient scaling in fp16. auto is O1 where the "
        "device computes in bf16 or fp16, else O0.",
        refused={"O2": NO_LOSS_PARITY, "O3": NO_LOSS_PARITY},
    )
    amp_dtype: Literal["auto", "bf16", "fp16"] = option(
        "auto",
        "dtype of autocast. auto is bf16 where the device computes in it, else fp16 on CUDA.",
    )
    batch_size: int | None = option(
        None, "Samples per process and step. Default: the task's own.", unit="samples"
    )
    image_size: int | None = option(
        None,
        "Height and width of input images. Default: the task's own.",
        unit="pixels",
        minimum=32,
    )
    sequence_length: int | None = option(
        None,
        "Tokens or frames per sample. Default: the task's own.",
        unit="tokens or frames",
        minimum=8,
    )
    epochs: int | None = option(
        None,
        "Passes over the training data. Default: 1, or as many as max_steps takes.",
        unit="epochs",
    )
    max_steps: int | None = option(
        None, "Stop after this many steps. Default: at the end of the last epoch.", unit="steps"
    )
    warmup_steps: int = option(
        3,
        "First steps, left out of steady-state figures. Raise it where steps settle late.",
        unit="steps",
        minimum=0,
    )
    lr: float | None = option(None, "Learning rate. Default: the task's own.", minimum=0.0)
    weight_decay: float | None = option(None, "Weight decay. Default: the task's own.", minimum=0.0)
    max_grad_norm: float | None = option(
        None, "Clip gradients to this L2 norm of all together. Default: no clipping.", minimum=1e-6
    )
    lr_schedule: Literal["task", "none", "linear", "cosine", "step", "onecycle"] = option(
        "task",
        "Learning rate by step, as in torch.optim.lr_scheduler. linear and cosine fall to 0, "
        "step to a tenth every lr_step_size steps, onecycle rises to lr and falls.",
    )
    lr_warmup_steps: int = option(
        0,
        "First steps, in which the learning rate rises in a line. onecycle: 0 is torch's 30 %.",
        unit="steps",
        minimum=0,
    )
    lr_step_size: int | None = option(
        None,
        "With lr_schedule step, steps between two falls. Default: a third of the run.",
        unit="steps",
    )
    lr_schedule_steps: int | None = option(
        None,
        "Steps of the schedule. Default: those of the run. Give it where a run is to be continued.",
        unit="steps",
    )
    label_smoothing: float | None = option(
        None,
        "Share of each label spread over all classes, with a cross-entropy. Default: the "
        "task's own.",
        minimum=0.0,
        maximum=1.0,
    )
    evaluate: bool = option(True, "Measure the held-out metrics before the run ends.")
    save_weights: bool = option(
        False, "Write the trained weights to weights.pt in the run directory."
    )
    pretrained: str | None = option(
        None,
        "File of weights to start from, safetensors or a state dict. What does not fit stays "
        "as drawn, and is named.",
    )
    init_from: str | None = option(
        None, "Folder of an earlier run to start from: its weights.pt, else its newest checkpoint."
    )
    data_dir: str | None = option(
        None,
        "Data folder. Default: the mock data that prepare.sh makes. Image classifiers get an "
        "output for each class of the folder; without a folder they have ImageNet's 1000.",
    )
    workers: int = option(
        1,
        "Data-loading processes per training process. On a CPU they share the cores with it.",
        unit="processes",
        minimum=0,
    )
    threads: int | None = option(
        None, "CPU threads per process. Default: cores / processes on this host.", unit="threads"
    )
    rank_timeout: float = option(
        120.0,
        "End a run when one of several processes gives no sign of life for so long, or no "
        "batch comes.",
        unit="seconds",
        minimum=5.0,
    )
    terminate_on_nan: bool = option(
        True, "End the run, with exit code 1, when its loss is no finite number any more."
    )
    seed: int = option(
        0,
        "Seed of weights, shuffling and augmentation. Runs of one seed start alike.",
        minimum=0,
        maximum=2**32 - 1,
    )
    log_interval: int = option(10, "Steps between two log lines.", unit="steps")
    tensorboard: bool = option(False, "Also write TensorBoard events into the run directory.")
    run_dir: str | None = option(
        None, "Run directory, without a finished run. Default: a new one below runs/."
    )
    checkpoint_every: str | None = option(
        None,
        "Save a checkpoint every so many steps (20) or minutes (10min), in the background. "
        "Default: none.",
    )
    keep: int = option(2, "Newest checkpoints to keep; older ones are deleted.", minimum=1)
    resume: str | None = option(
        None,
        "Go on from a checkpoint: auto is the newest whole one of run_dir, if any; else a folder.",
    )


@dataclass(frozen=True)
class LaunchConfig:
    """Options of launching a run's processes: the part of torchrun's options that matters here."""

    nproc_per_node: int = option(
        1,
        "Training processes on this host, at most one per device (GPU, else CPU core).",
        unit="processes",
    )
    nnodes: str = option(
        "1",
        "Hosts: a number, or MIN:MAX, with which the run goes on from its last checkpoint "
        "when a host is lost or joins (checkpoint_every).",
    )
    node_rank: int = option(0, "This host's number among them, from 0.", minimum=0)
    master_addr: str = option("127.0.0.1", "Address of host 0, as the other hosts see it.")
    master_port: int | None = option(
        None,
        "Port on host 0. Default: a free one (one host), 29400 (several).",
        minimum=1,
        maximum=65535,
    )
    max_restarts: int = option(
        0,
        "Times that the processes are started again from the last checkpoint after a failure.",
        unit="times",
        minimum=0,
    )
    rdzv_endpoint: str | None = option(
        None, "HOST:PORT where the hosts of MIN:MAX meet. Default: master_addr and master_port."
    )
    rdzv_id: str | None = option(
        None, "Name of the run at that place, the same on all hosts. Default: gallery."
    )
    dry_run: bool = option(False, "Print the torchrun command and end.")

    def __post_init__(self) -> None:
        """Take a number of hosts as well as its text."""
        object.__setattr__(self, "nnodes", str(self.nnodes))

    @property
    def hosts(self) -> tuple[int, int]:
        """Return the least and the greatest number of hosts.

        Raises:
            InputError: for text that is neither a number nor MIN:MAX.
        """
        least, colon, most = self.nnodes.partition(":")
        numbers = [least, most] if colon else [least, least]
        if all(number.isascii() and number.isdecimal() for number in numbers):
            low, high = map(int, numbers)
            if 1 <= low <= high <= _MOST_HOSTS:
                return low, high
        raise InputError(
            f"nnodes={self.nnodes!r} must be a number of hosts from 1 to {_MOST_HOSTS}, or MIN:MAX "
            "such as 1:4.",
            parameter="nnodes",
        )

    @property
    def elastic(self) -> bool:
        """Return whether the number of hosts may change."""
        least, most = self.hosts
        return least != most

    @property
    def dynamic(self) -> bool:
        """Return whether torchrun's agents meet anew at each start, and decide who is rank 0."""
        several = self.hosts != (1, 1)
        return several and (self.restarts or self.rdzv_endpoint is not None)

    @property
    def restarts(self) -> bool:
        """Return whether the processes may be started again while the run lasts."""
        return self.elastic or self.max_restarts > 0

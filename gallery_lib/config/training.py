"""Options of a run, of a run's processes, and of the comparison of two variants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option

NO_LOSS_PARITY = (
    "it keeps half-precision weights, whose training is not the baseline's, and PyTorch has no "
    "such mode. Use O1 (autocast) or O0 (fp32)."
)
"""Reason why O2 and O3 are not offered."""


@dataclass(frozen=True)
class TrainConfig:
    """Options of one training run, as `train()` and `launch_single_task.py` take them."""

    model: str = option(
        "resnet50",
        "task to train: a name from `gallery list`, or FILE.py:NAME for a task of your own",
    )
    compiler_opt: bool = option(False, "switch the accelerated backend on")
    kernels: bool = option(True, "own CUDA kernels, inside the accelerated backend")
    tune: bool = option(
        False,
        "inside the accelerated backend, "
        "choose layout and compiler by measurement at the first step",
    )
    amp_level: Literal["O0", "O1"] = option(
        "O0",
        "O0 is fp32; O1 is autocast, with gradient scaling where the dtype is fp16",
        refused={"O2": NO_LOSS_PARITY, "O3": NO_LOSS_PARITY},
    )
    amp_dtype: Literal["auto", "bf16", "fp16"] = option(
        "auto",
        "dtype of autocast under O1; "
        "auto is bf16 where the device computes in it, else fp16 on CUDA",
    )
    batch_size: int | None = option(
        None, "samples per process and step; default: the task's own", unit="samples", minimum=1
    )
    image_size: int | None = option(
        None, "height and width of input images; default: the task's own", unit="pixels", minimum=32
    )
    sequence_length: int | None = option(
        None,
        "tokens or frames per sample; default: the task's own",
        unit="tokens or frames",
        minimum=8,
    )
    epochs: int | None = option(
        None,
        "passes over the training data; default: 1, or as many as max_steps takes",
        unit="epochs",
        minimum=1,
    )
    max_steps: int | None = option(
        None,
        "stop after this many steps; default: at the end of the last epoch",
        unit="steps",
        minimum=1,
    )
    warmup_steps: int = option(
        3, "first steps, left out of steady-state figures", unit="steps", minimum=0
    )
    lr: float | None = option(None, "learning rate; default: the task's own", minimum=0.0)
    weight_decay: float | None = option(None, "weight decay; default: the task's own", minimum=0.0)
    max_grad_norm: float | None = option(
        None,
        "clip gradients to this L2 norm of all of them together; default: no clipping",
        minimum=1e-6,
    )
    evaluate: bool = option(True, "measure the held-out metrics before the run ends")
    save_weights: bool = option(
        False, "write the trained weights to weights.pt in the run directory"
    )
    data_dir: str | None = option(
        None,
        "data folder; default: the mock data that prepare.sh makes. Image classifiers get an "
        "output for each class of the folder, and ImageNet's 1000 without one",
    )
    workers: int = option(
        1, "processes that load data, per training process", unit="processes", minimum=0
    )
    threads: int | None = option(
        None,
        "CPU threads per process; default: cores / processes on this host",
        unit="threads",
        minimum=1,
    )
    rank_timeout: float = option(
        120.0,
        "end a run of several processes when one of them gives no sign of life for so long",
        unit="seconds",
        minimum=5.0,
    )
    terminate_on_nan: bool = option(
        True, "end the run, with exit code 1, when its loss is no finite number any more"
    )
    seed: int = option(
        0, "seed of weights, shuffling and augmentation", minimum=0, maximum=2**32 - 1
    )
    log_interval: int = option(10, "steps between two log lines", unit="steps", minimum=1)
    tensorboard: bool = option(False, "write TensorBoard events into the run directory as well")
    run_dir: str | None = option(
        None, "run directory, must not hold a finished run; default: a new one below runs/"
    )


@dataclass(frozen=True)
class LaunchConfig:
    """Options of launching a run's processes: the part of torchrun's options that matters here."""

    nproc_per_node: int = option(
        1,
        "training processes on this host; at most one per device (GPU, else CPU core)",
        unit="processes",
        minimum=1,
    )
    nnodes: int = option(1, "hosts that take part", unit="hosts", minimum=1)
    node_rank: int = option(0, "this host's number among them, from 0", minimum=0)
    master_addr: str = option("127.0.0.1", "address of host 0")
    master_port: int | None = option(
        None,
        "port on host 0; default: a free one (one host), 29400 (several)",
        minimum=1,
        maximum=65535,
    )
    dry_run: bool = option(False, "print the torchrun command and end")


@dataclass(frozen=True)
class CompareConfig:
    """Options of comparing two variants (see measure/comparison/compare.py)."""

    rounds: int = option(
        16, "turns that each variant gets; the interval comes from these", unit="turns", minimum=4
    )
    starts: int = option(
        1,
        "times that both are started anew, each time for that many turns: "
        "processes of one code differ",
        minimum=1,
        maximum=100,
    )
    block_steps: int = option(
        4, "steps in one turn; the first of each is not counted", unit="steps", minimum=2
    )
    parity_steps: int = option(
        3, "first steps checked against a float64 run", unit="steps", minimum=1
    )
    confidence: float = option(
        0.99, "confidence level of the speed-up's interval", minimum=0.5, maximum=0.9999
    )

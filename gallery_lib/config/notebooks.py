"""Parameters that papermill can pass to the notebooks, one options class per kind of notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option, same_as
from gallery_lib.config.training import NO_LOSS_PARITY, TrainConfig


@dataclass(frozen=True)
class NotebookConfig:
    """Parameters of a task's notebook."""

    profile: Literal["auto", "quick", "full"] = "auto"
    """Sizes: quick is minutes on two cores, full is the task at its real size. auto is full on a
    GPU, else quick."""
    amp_level: Literal["auto", "O0", "O1"] = option(
        "auto", refused={"O2": NO_LOSS_PARITY, "O3": NO_LOSS_PARITY}
    )
    """Precision of both variants. auto is O1 where the device computes in bf16 or fp16, else O0."""
    amp_dtype: Literal["auto", "bf16", "fp16"] = "auto"
    """dtype of autocast under O1."""
    batch_size: int | None = option(None, unit="samples")
    """Samples per process and step. Default: the profile's."""
    image_size: int | None = option(None, unit="pixels", minimum=32)
    """Height and width of input images. Default: the profile's."""
    sequence_length: int | None = option(None, unit="tokens or frames", minimum=8)
    """Tokens or frames per sample. Default: the profile's."""
    processes: int | None = option(None, unit="processes")
    """Processes of the comparison on several. Default: one per device, at most 8."""
    rounds: int | None = option(None, unit="turns", minimum=4)
    """Turns of each variant. More narrow the interval, and take longer. Default: the profile's."""
    starts: int = option(1, minimum=1, maximum=100)
    """Times that both start anew, for so many turns each. Averages what processes differ by."""
    block_steps: int | None = option(None, unit="steps", minimum=2)
    """Steps in one turn. Default: the profile's."""
    waterfall: bool = True
    """Measure one technique after another. Takes minutes the first time; the result is kept."""
    data_dir: str | None = None
    """Data folder. Default: the mock data that prepare.sh makes."""
    seed: int = same_as(TrainConfig, "seed")


@dataclass(frozen=True)
class YourModelConfig:
    """Parameters of the notebook your_model: optimizer, precision and sizes of an own task."""

    profile: Literal["auto", "quick", "full"] = "auto"
    """How much is measured: quick is a minute or two on two cores. auto is full on a GPU, else
    quick."""
    optimizer: Literal[
        "AdamW", "Adam", "SGD", "RMSprop", "RAdam", "NAdam", "Adamax", "Adagrad", "Adadelta"
    ] = "AdamW"
    """Optimizer of torch.optim. SGD has a momentum of 0.9."""
    learning_rate: float | None = option(None, minimum=0.0)
    """Learning rate. Default: torch's for the optimizer."""
    amp_level: Literal["auto", "O0", "O1"] = same_as(NotebookConfig, "amp_level")
    amp_dtype: Literal["auto", "bf16", "fp16"] = same_as(NotebookConfig, "amp_dtype")
    batch_size: int | None = option(None, unit="samples")
    """Samples per step. Default: that of the call of your_settings."""
    rounds: int | None = same_as(NotebookConfig, "rounds")
    starts: int = same_as(NotebookConfig, "starts")
    block_steps: int | None = same_as(NotebookConfig, "block_steps")
    seed: int = same_as(NotebookConfig, "seed")


@dataclass(frozen=True)
class DataParallelNotebookConfig:
    """Parameters of the notebook data_parallel; sizes default to large on a GPU, small on a CPU."""

    images: int | None = option(None, unit="images", minimum=8)
    """Random training images. Default: 6400 on a GPU, else 16, or what an epoch of the processes
    needs to log twice."""
    image_size: int | None = option(None, unit="pixels", minimum=32, maximum=1024)
    """Height and width of the images. Default: 224 on a GPU, else 48."""
    batch_size: int | None = option(None, unit="samples")
    """Samples per process and step. Default: 64 on a GPU, else 4."""
    epochs: int = option(1, unit="epochs")
    """Passes over the images."""
    log_steps: int | None = option(None, unit="steps")
    """Steps between two lines of the log. Default: 5 on a GPU, else 1."""
    processes: int | None = option(None, unit="processes")
    """Processes of the parallel runs. Default: one per device, at most 8."""
    rounds: int = option(8, unit="turns", minimum=4)
    """Turns of each script in the comparison. More narrow the interval, and take longer."""
    block_steps: int | None = option(None, unit="steps")
    """Counted steps in one turn. Default: 10 on a GPU, else 1."""


@dataclass(frozen=True)
class CommunicationNotebookConfig:
    """Parameters of the notebook communication."""

    hosts: int = option(2, unit="hosts", minimum=2, maximum=8)
    """Hosts of the lab, on this machine, with emulated links."""
    processes: int = option(1, unit="processes", maximum=8)
    """Training processes on each host of the lab."""
    rate: str = "200mbit"
    """Rate of each host's link, in either direction, in bits per second. The lower, the more the
    wire formats gain."""
    width: int = option(512, unit="units", minimum=16, maximum=8192)
    """Width of the four layers that are trained on the lab."""
    rounds: int = option(4, unit="turns", minimum=4)
    """Turns of each technique; the intervals come from these. More turns take longer."""
    block_steps: int = option(3, unit="steps")
    """Counted steps in one turn."""
    seeds: int = option(2, unit="seeds", minimum=2)
    """How often each wire format learns digits, each time from other weights."""
    epochs: int = option(8, unit="epochs")
    """Passes over the digits."""


@dataclass(frozen=True)
class PerformanceDataConfig:
    """Parameters of the notebook performance_data."""

    table: str = "benchmarks/results/epyc-avx2-2core/sweep.csv"
    """Table of replayed trainings (CSV) to show."""

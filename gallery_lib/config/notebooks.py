"""Parameters that papermill can pass to the notebooks, one options class per kind of notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option


@dataclass(frozen=True)
class ComparedConfig:
    """Parameters of a notebook that compares trainings."""

    profile: Literal["auto", "quick", "full"] = "auto"
    """Sizes: quick is minutes on two cores, full is the task at its real size. auto is full on a
    GPU, else quick."""
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
    """Processes of the comparison on several. Default: one per device, at most 8."""
    waterfall: bool = True
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
    """Rate of each host's link, in either direction, in bits per second. The lower, the more the
    wire formats gain."""
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

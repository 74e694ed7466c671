"""Parameters that papermill can pass to the notebooks, one options class per kind of notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option, same_as
from gallery_lib.config.training import NO_LOSS_PARITY, TrainConfig


@dataclass(frozen=True)
class NotebookConfig:
    """Parameters of a task's notebook."""

    profile: Literal["auto", "quick", "full"] = option(
        "auto",
        "Sizes: quick is minutes on two cores, full is the task at its real size. auto is "
        "full on a GPU, else quick.",
    )
    amp_level: Literal["auto", "O0", "O1"] = option(
        "auto",
        "Precision of both variants. auto is O1 where the device computes in bf16 or fp16, "
        "else O0.",
        refused={"O2": NO_LOSS_PARITY, "O3": NO_LOSS_PARITY},
    )
    amp_dtype: Literal["auto", "bf16", "fp16"] = option("auto", "dtype of autocast under O1.")
    batch_size: int | None = option(
        None, "Samples per process and step. Default: the profile's.", unit="samples"
    )
    image_size: int | None = option(
        None, "Height and width of input images. Default: the profile's.", unit="pixels", minimum=32
    )
    sequence_length: int | None = option(
        None,
        "Tokens or frames per sample. Default: the profile's.",
        unit="tokens or frames",
        minimum=8,
    )
    processes: int | None = option(
        None,
        "Processes of the comparison on several. Default: one per device, at most 8.",
        unit="processes",
    )
    rounds: int | None = option(
        None,
        "Turns of each variant. More narrow the interval, and take longer. Default: the profile's.",
        unit="turns",
        minimum=4,
    )
    starts: int = option(
        1,
        "Times that both start anew, for so many turns each. Averages what processes differ by.",
        minimum=1,
        maximum=100,
    )
    block_steps: int | None = option(
        None, "Steps in one turn. Default: the profile's.", unit="steps", minimum=2
    )
    waterfall: bool = option(
        True,
        "Measure one technique after another. Takes minutes the first time; the result is kept.",
    )
    measure_again: bool = option(
        False, "Measure anew what was measured before with this code and these parameters."
    )
    data_dir: str | None = option(
        None, "Data folder. Default: the mock data that prepare.sh makes."
    )
    seed: int = same_as(TrainConfig, "seed")


@dataclass(frozen=True)
class YourModelConfig:
    """Parameters of the notebook your_model: optimizer, precision and sizes of an own task."""

    profile: Literal["auto", "quick", "full"] = option(
        "auto",
        "How much is measured: quick is a minute or two on two cores. auto is full on a GPU, "
        "else quick.",
    )
    optimizer: Literal[
        "adamw", "adam", "sgd", "rmsprop", "radam", "nadam", "adamax", "adagrad", "adadelta"
    ] = option("adamw", "Optimizer of torch.optim. sgd has a momentum of 0.9.")
    learning_rate: float | None = option(
        None, "Learning rate. Default: torch's for the optimizer.", minimum=0.0
    )
    amp_level: Literal["auto", "O0", "O1"] = same_as(NotebookConfig, "amp_level")
    amp_dtype: Literal["auto", "bf16", "fp16"] = same_as(NotebookConfig, "amp_dtype")
    batch_size: int | None = option(
        None, "Samples per step. Default: that of the call of your_settings.", unit="samples"
    )
    rounds: int | None = same_as(NotebookConfig, "rounds")
    starts: int = same_as(NotebookConfig, "starts")
    block_steps: int | None = same_as(NotebookConfig, "block_steps")
    measure_again: bool = same_as(NotebookConfig, "measure_again")
    seed: int = same_as(NotebookConfig, "seed")


@dataclass(frozen=True)
class DataParallelNotebookConfig:
    """Parameters of the notebook data_parallel; sizes default to large on a GPU, small on a CPU."""

    images: int | None = option(
        None,
        "Random training images. Default: 6400 on a GPU, else 16, or what an epoch of the "
        "processes needs to log twice.",
        unit="images",
        minimum=8,
    )
    image_size: int | None = option(
        None,
        "Height and width of the images. Default: 224 on a GPU, else 48.",
        unit="pixels",
        minimum=32,
        maximum=1024,
    )
    batch_size: int | None = option(
        None, "Samples per process and step. Default: 64 on a GPU, else 4.", unit="samples"
    )
    epochs: int = option(1, "Passes over the images.", unit="epochs")
    log_steps: int | None = option(
        None, "Steps between two lines of the log. Default: 5 on a GPU, else 1.", unit="steps"
    )
    processes: int | None = option(
        None,
        "Processes of the parallel runs. Default: one per device, at most 8.",
        unit="processes",
    )
    rounds: int = option(
        8,
        "Turns of each script in the comparison. More narrow the interval, and take longer.",
        unit="turns",
        minimum=4,
    )
    block_steps: int | None = option(
        None, "Counted steps in one turn. Default: 10 on a GPU, else 1.", unit="steps"
    )


@dataclass(frozen=True)
class CommunicationNotebookConfig:
    """Parameters of the notebook communication."""

    model: str = option(
        "resnet50", "Task whose gradients are counted in bytes, in each wire format."
    )
    hosts: int = option(
        2,
        "Hosts of the lab, on this machine, with emulated links.",
        unit="hosts",
        minimum=2,
        maximum=8,
    )
    processes: int = option(
        1, "Training processes on each host of the lab.", unit="processes", maximum=8
    )
    rate: str = option(
        "200mbit",
        "Rate of each host's link, in either direction, in bits per second. The lower, the "
        "more the wire formats gain.",
    )
    width: int = option(
        512,
        "Width of the four layers that are trained on the lab.",
        unit="units",
        minimum=16,
        maximum=8192,
    )
    rounds: int = option(
        4,
        "Turns of each technique; the intervals come from these. More turns take longer.",
        unit="turns",
        minimum=4,
    )
    block_steps: int = option(3, "Counted steps in one turn.", unit="steps")
    seeds: int = option(
        2,
        "How often each wire format learns digits, each time from other weights.",
        unit="seeds",
        minimum=2,
    )
    epochs: int = option(8, "Passes over the digits.", unit="epochs")


@dataclass(frozen=True)
class PerformanceDataConfig:
    """Parameters of the notebook performance_data."""

    sweep: str | None = option(
        None,
        "Table of a sweep, or the folder that it is in. Default: the newest in "
        "benchmarks/results/.",
    )

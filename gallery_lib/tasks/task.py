"""What a task is: one model with its data, loss, optimizer, batch size and held-out metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from gallery_lib.config import TrainConfig
from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.examples import Examples


@dataclass(frozen=True)
class Splits:
    """Training and held-out data: map-style data sets.

    A data set may offer `set_epoch(epoch)`, `finish_batch(batch, memory_format)` (on the device), `collate(items)`,
    and `lengths` (one number per item), by which batches are made of items of similar length.
    """

    train: Dataset[Any]
    held_out: Dataset[Any]


@dataclass(frozen=True)
class Task:
    """Everything that `train()` needs to know about a model.

    `loss` takes the (possibly wrapped) model and a batch and returns a scalar tensor; it runs under autocast.
    `metrics` takes the plain model and a batch and returns, for each quantity, its sum over the batch and the number
    of terms; the means of these are the metrics, or what `summary` makes metrics of (perplexity, say, or the equal
    error rate of score histograms). `build_model` starts from weights at which rounding errors do not explode, so
    that runs can be compared; it imports the model's library itself, so that naming a task stays cheap.
    """

    name: str
    title: str
    domain: str
    batch_size: int
    build_model: Callable[[], nn.Module]
    data: Callable[[TrainConfig], Splits]
    loss: Callable[[nn.Module, Any], Tensor]
    metrics: Callable[[nn.Module, Any], Mapping[str, tuple[Tensor, int]]]
    optimizer: OptimizerSpec
    flops_per_sample: float  # forward and backward, at the task's own input size
    chance: Callable[[Splits], dict[str, float]]  # the metrics of a model that has learned nothing
    parameters: int | None = None  # number of trained values
    activation_bytes_per_sample: int = 0  # for activations, at the task's own size, in fp32 (see memory.py)
    where_time_goes: str = ""  # what a step's time is spent on, in a sentence
    quick: dict[str, Any] = field(default_factory=dict)  # options for a demonstration on a few cores
    full: dict[str, Any] = field(default_factory=dict)  # options for a GPU
    image_size: int | None = None  # height in pixels, where inputs are images
    sequence_length: int | None = None  # tokens or frames, where inputs are sequences
    samples_per_item: int = 1  # of the data set: two utterances of a speaker are two samples
    summary: Callable[[Mapping[str, Tensor]], dict[str, float]] | None = None
    data_commands: tuple[str, ...] = ()  # in data_prep/: what makes its mock data, and what checks or prepares real data
    data_examples: Callable[[Splits], Examples] | None = None  # a look at the training data
    predictions: Callable[[Mapping[str, nn.Module], Splits], Examples] | None = None  # of models by title, on held-out data

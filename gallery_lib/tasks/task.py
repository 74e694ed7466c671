"""Definition of a task: a model with its data, loss, optimizer, batch size, held-out metrics."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from gallery_lib.config import TrainConfig
from gallery_lib.optim import OptimizerSpec

QUICK: dict[str, Any] = {"rounds": 6, "block_steps": 4, "parity_steps": 2}
"""Options of a demonstration on a few cores; a task adds its sizes."""
FULL: dict[str, Any] = {"warmup_steps": 10, "rounds": 20, "block_steps": 20}
"""Options of a run on a GPU; a task adds its sizes."""
_LOGIT_BYTES = 8  # of one output of a sample: what cross-entropy keeps in fp32, and its gradient


@dataclass(frozen=True)
class Pictures:
    """Images uint8 [H, W, 3], each with a caption, and a sentence on what is to be seen."""

    images: Sequence[np.ndarray]
    captions: Sequence[str]
    description: str
    columns: int = 5


@dataclass(frozen=True)
class Splits:
    """Training and held-out data: map-style data sets.

    A data set may have `set_epoch(epoch)`, `finish_batch(batch, memory_format)` (on the device),
    `collate(items)`, and `lengths` (a number per item), by which items of a batch are alike.
    """

    train: Dataset[Any]
    held_out: Dataset[Any]

    def notices(self) -> list[str]:
        """Return what the data sets report in their `notices`, say what is left out."""
        both = (self.train, self.held_out)
        return [line for data in both for line in getattr(data, "notices", ())]


@dataclass(frozen=True)
class Head:
    """The last layer of a model that has an output for each class of the data.

    `build_model()` gives `outputs` of them, and `build_model(classes=…)` another number. `wanted`
    returns how many the data of a run call for, without reading them.
    """

    outputs: int
    parameters_per_output: int  # weights of one row, and its bias
    wanted: Callable[[TrainConfig], int]


@dataclass(frozen=True)
class Task:
    """Everything that `train()` needs to know about a model.

    - `build_model` starts from weights at which rounding errors do not explode, so that runs can be
      compared. It imports the model's library itself, so that naming a task stays cheap. With a
      `head` it takes the number of classes as `classes`, and `tasks.of(config)` is the task with as
      many outputs as the data has.
    - `loss` takes the (possibly wrapped) model and a batch and returns a scalar tensor; it runs
      under autocast.
    - `metrics` takes the plain model and a batch. For each quantity it returns the sum over the
      batch and the number of terms. The means of these are the metrics.
    - `summary`, where there is one, makes the metrics of these means: perplexity, say, or the equal
      error rate of score histograms.
    """

    name: str
    title: str
    domain: str
    batch_size: int
    build_model: Callable[..., nn.Module]
    data: Callable[[TrainConfig], Splits]
    loss: Callable[..., Tensor]
    metrics: Callable[[nn.Module, Any], Mapping[str, tuple[Tensor, int]]]
    optimizer: OptimizerSpec
    flops_per_sample: float  # forward and backward, at the task's own input size
    chance: Callable[[Splits], dict[str, float]]  # the metrics of a model that has learned nothing
    parameters: int | None = None  # number of trained values
    # for activations, at the task's own size, in fp32 (see memory_estimate.py)
    activation_bytes_per_sample: int = 0
    # options for a demonstration on a few cores
    quick: dict[str, Any] = field(default_factory=dict)
    full: dict[str, Any] = field(default_factory=dict)  # options for a GPU
    image_size: int | None = None  # height in pixels, where inputs are images
    sequence_length: int | None = None  # tokens or frames, where inputs are sequences
    image_width: Callable[[int], int] = lambda height: height  # in pixels, of images of a height
    length_unit: str = "tokens"  # what `sequence_length` counts
    samples_per_item: int = 1  # of the data set: two utterances of a speaker are two samples
    summary: Callable[[Mapping[str, Tensor]], dict[str, float]] | None = None
    # in data_prep/: what makes its mock data, and what checks or prepares real data
    data_commands: tuple[str, ...] = ()
    data_examples: Callable[[Splits], Pictures] | None = None  # a look at training images
    head: Head | None = None  # None: the model's outputs are its own business

    def input_size(self, image_size: int | None, sequence_length: int | None) -> str:
        """Return how large one sample is: `64×64 pixels` (width × height), `32 tokens`, or ''."""
        if image_size:
            return f"{self.image_width(image_size)}×{image_size} pixels"
        return f"{sequence_length} {self.length_unit}" if sequence_length else ""

    def with_outputs(self, outputs: int) -> Task:
        """Return the task with so many outputs, or itself if it has them already.

        The copy differs in model, parameters, operations and activations. A task whose
        `build_model` takes no `classes` (one that was put in its place) stays as it is.
        """
        head = self.head
        given = "classes" in inspect.signature(self.build_model).parameters
        if head is None or head.outputs == outputs or not given:
            return self
        more, values = outputs - head.outputs, head.parameters_per_output
        return dataclasses.replace(
            self,
            build_model=partial(self.build_model, classes=outputs),
            parameters=None if self.parameters is None else self.parameters + more * values,
            flops_per_sample=self.flops_per_sample + more * 6.0 * (values - 1),
            activation_bytes_per_sample=self.activation_bytes_per_sample + more * _LOGIT_BYTES,
            head=dataclasses.replace(head, outputs=outputs),
        )

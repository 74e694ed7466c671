"""Shared parts of image classification: data, initial weights, cross-entropy, top-1, top-5.

The data are mock or real ImageNet. The initial weights let runs be compared, and let a few dozen
steps learn something.

*Small branches.* Goyal et al., "Accurate, Large Minibatch SGD", 2017, start the last batch norm of
each residual branch at zero, so that the network starts as its trunk. Here it starts at 0.1, which
leaves every parameter a gradient. The libraries' own start makes every branch as large as its
trunk. Rounding errors then double from block to block. Two correct runs part at once, and nothing
can be told from comparing them.

*Centred filters.* In a deep network without batch norm, each ReLU adds to what all samples have in
common, until they look alike to the last layers. Filters whose weights sum to zero take that out
again (Brock et al., "Characterizing signal propagation to close the performance gap in unnormalized
ResNets", 2021; there in every step, here at the start).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.data.images.image_folder import ImageFolder
from gallery_lib.data.images.listing import list_classes
from gallery_lib.data.images.mock_imagenet import class_in_words
from gallery_lib.errors import InputError
from gallery_lib.system import paths
from gallery_lib.tasks.domains.cross_entropy import cross_entropy
from gallery_lib.tasks.task import Head, Pictures, Splits, Task

Batch = tuple[Tensor, Tensor]  # images float [N, 3, S, S], labels int64 [N]
IMAGENET_CLASSES = 1000
BRANCH_SCALE = 0.1
# This gain keeps the variance through a ReLU, for weights without mean.
_RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))


def classes(config: TrainConfig) -> int:
    """Return the number of class folders of `config.data_dir`; for mock data ImageNet's 1000."""
    return len(list_classes(config.data_dir, "train")) if config.data_dir else IMAGENET_CLASSES


def head(features: int) -> Head:
    """Return the head for a linear layer with bias on so many features."""
    return Head(outputs=IMAGENET_CLASSES, parameters_per_output=features + 1, wanted=classes)


def images(config: TrainConfig, *, smallest: int = 32, multiple_of: int = 1) -> Splits:
    """Return the images of `config.data_dir` (ImageNet's layout), else of the small mock ImageNet.

    They have the size `config.image_size`.

    Raises:
        InputError: for an image size in pixels that the model cannot take: below `smallest`, or not
            a `multiple_of`.
    """
    root = config.data_dir or str(paths.data_dir("imagenet-small"))
    assert config.image_size is not None
    wanted = ""
    if config.image_size < smallest:
        wanted = f"images of at least {smallest}"
    elif config.image_size % multiple_of:
        wanted = f"a multiple of {multiple_of}"
    if wanted:
        raise InputError(
            f"image_size={config.image_size}: {config.model} needs {wanted} pixels.",
            parameter="image_size",
        )
    train = ImageFolder(root, "train", config.image_size, train=True, seed=config.seed)
    held_out = ImageFolder(
        root, "val", config.image_size, train=False, seed=config.seed, classes=train.classes
    )
    return Splits(train, held_out)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy of logits [N, classes], in fp32 under autocast too."""
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def metrics(model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, int]]:
    """Return the top-1 hits of one batch, and with more than five outputs the top-5 hits."""
    inputs, labels = batch
    logits = model(inputs)
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices  # [N, 5]
    hits = best == labels[:, None]
    result = {"top1": (hits[:, 0].sum(), len(labels))}
    if logits.shape[1] > 5:
        result["top5"] = (hits.any(dim=1).sum(), len(labels))
    return result


def chance(splits: Splits) -> dict[str, float]:
    """Return the accuracy of guessing among the classes that the data has."""
    held_out: Any = splits.held_out
    classes = len(held_out.classes)
    return {f"top{k}": k / classes for k in (1, 5) if k == 1 or k < classes}


def examples(splits: Splits, count: int = 10) -> Pictures:
    """Return training images as the model sees them, one class after the other."""
    data: Any = splits.train
    samples = [data[int(i)] for i in range(0, len(data), max(1, len(data) // count))][:count]
    labels = [class_in_words(data.classes[int(label)]) for _, label in samples]
    size = samples[0][0].shape[0]
    description = (
        f"{len(samples)} of {len(data)} training images, augmented, {size}×{size}, of "
        f"{len(data.classes)} classes"
    )
    captions = [label.replace(", ", ",\n") for label in labels]
    return Pictures([image.numpy() for image, _ in samples], captions, description)


def start_branches_small(scales: Iterable[Tensor]) -> None:
    """Fill each of `scales` with BRANCH_SCALE.

    `scales` are the weights of the batch norms that branches end with.
    """
    for scale in scales:
        nn.init.constant_(scale, BRANCH_SCALE)


@torch.no_grad()
def start_filters_centred(model: nn.Module) -> None:
    """Draw the weights of all layers but the last from a normal distribution.

    Its mean is zero for each output. Each of these layers is followed by a ReLU. Biases are zero.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        # [outputs, inputs]; in place, since weights may be hundreds of megabytes
        weight = layer.weight.view(len(layer.weight), -1).normal_()
        weight.sub_(weight.mean(dim=1, keepdim=True)).mul_(_RELU_GAIN / math.sqrt(weight.shape[1]))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


image_classifier = partial(
    Task,
    domain="computer vision",
    data=images,
    loss=loss,
    metrics=metrics,
    chance=chance,
    data_commands=("mock_imagenet", "check_imagenet"),
    data_examples=examples,
)
"""Task of an image classifier, complete but for its name, model, sizes and optimizer."""

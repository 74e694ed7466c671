"""AlexNet on ImageNet-like images.

Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks", 2012, in the
one-column form of Krizhevsky, "One weird trick for parallelizing convolutional neural networks",
2014, as torchvision has it. TorchBench's batch size. Five convolutions are followed by three linear
layers that hold 96 % of the parameters. So the optimizer costs as much as the model unless batches
are large.
"""

from __future__ import annotations

import functools

from torch import nn

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.domains import classification
from gallery_lib.tasks.domains.classification import start_filters_centred
from gallery_lib.tasks.task import FULL, QUICK


def build_model(classes: int = 1000) -> nn.Module:
    """Return AlexNet for `classes` classes.

    All layers but the last have centred filters.
    """
    from torchvision.models import alexnet

    model = alexnet(num_classes=classes)
    start_filters_centred(model)
    return model


TASK = classification.image_classifier(
    name="alexnet",
    title="AlexNet",
    batch_size=128,
    image_size=224,
    build_model=build_model,
    head=classification.head(features=4096),
    # Below 63 pixels, nothing is left after the last pooling.
    data=functools.partial(classification.images, smallest=63),
    optimizer=OptimizerSpec("AdamW", lr=1e-4, weight_decay=1e-2),
    parameters=61_100_840,
    activation_bytes_per_sample=4_520_000,
    # 0.714 G multiply-adds forward, twice that backward, 2 operations each
    flops_per_sample=4.28e9,
    quick=QUICK | {"batch_size": 32, "image_size": 64},
    full=FULL | {"batch_size": 128, "image_size": 224},
)

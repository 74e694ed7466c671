"""VGG-16 on ImageNet-like images.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", 2014,
configuration D, without batch norm, as torchvision has it. TorchBench's batch size. Thirteen wide
3×3 convolutions make it the task with the most arithmetic per image. Its first linear layer alone
has 103 million parameters, which makes it the task with the longest gradients to average.
"""

from __future__ import annotations

from torch import nn

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.domains import classification
from gallery_lib.tasks.domains.classification import start_filters_centred
from gallery_lib.tasks.task import FULL, QUICK


def build_model(classes: int = 1000) -> nn.Module:
    """Return VGG-16 for `classes` classes.

    All layers but the last have centred filters.
    """
    from torchvision.models import vgg16

    model = vgg16(num_classes=classes)
    start_filters_centred(model)
    return model


TASK = classification.image_classifier(
    name="vgg16",
    title="VGG-16",
    batch_size=64,
    image_size=224,
    build_model=build_model,
    head=classification.head(features=4096),
    optimizer=OptimizerSpec("AdamW", lr=5e-5, weight_decay=1e-2),
    parameters=138_357_544,
    activation_bytes_per_sample=86_200_000,
    # 15.5 G multiply-adds forward (convolutions and linear layers), twice that backward, 2
    # operations each
    flops_per_sample=92.8e9,
    quick=QUICK | {"batch_size": 8, "image_size": 32, "block_steps": 2},
    full=FULL | {"batch_size": 64, "image_size": 224},
)

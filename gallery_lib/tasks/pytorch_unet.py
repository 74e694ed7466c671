"""U-Net on photographs with masks.

Ronneberger, Fischer, Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015,
in the form that TorchBench's `pytorch_unet` has: padded convolutions, batch norm, bilinear
enlargement, two classes, 640×959 pixels and one image a step. `models/unet.py` is written from the
paper. Unlike TorchBench's, the masks are not all zero.
"""

from __future__ import annotations

from torch import nn

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.domains import segmentation
from gallery_lib.tasks.task import FULL, QUICK, Task


def build_model() -> nn.Module:
    """Return U-Net for two classes, background and object."""
    from gallery_lib.models.unet import UNet

    return UNet(classes=2)


TASK = Task(
    name="pytorch_unet",
    title="U-Net",
    domain="computer vision",
    batch_size=1,
    image_size=640,
    image_width=segmentation.width_of,
    build_model=build_model,
    data=segmentation.images,
    loss=segmentation.loss,
    metrics=segmentation.metrics,
    chance=segmentation.chance,
    optimizer=OptimizerSpec("RMSprop", lr=1e-4, weight_decay=1e-8, arguments={"momentum": 0.9}),
    data_commands=("mock_segmentation", "check_segmentation"),
    data_examples=segmentation.examples,
    parameters=17_267_458,
    activation_bytes_per_sample=3_380_000_000,
    # 610,112 multiply-adds a pixel (18 convolutions of 3×3, the 1×1, each divided by the area its
    # level is reduced by), times two operations, 640·959 pixels, and three for forward and backward
    flops_per_sample=2.25e12,
    quick=QUICK | {"batch_size": 1, "image_size": 128},
    full=FULL | {"batch_size": 8, "image_size": 640},
)

"""ResNet-50 on a folder of images that are repeated, for batches larger than the folder.

    gallery_lib … --model benchmarks/repeated_images.py:TASK

Without it the search for the largest batch would end where the mock images do, not where memory
does. Reading is as it always is, and what is learned does not matter.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.utils.data import Dataset

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.data.images.image_folder import ImageFolder
from gallery_lib.tasks.task import Splits

IMAGES = 2**17
"""Length of an epoch at least: batches of ResNet-50 on the largest GPUs are far smaller."""


class Repeated(Dataset[tuple[torch.Tensor, int]]):
    """The images of a folder, over and over, until there are `IMAGES`."""

    finish_batch = staticmethod(ImageFolder.finish_batch)
    collate = staticmethod(ImageFolder.collate)

    def __init__(self, images: ImageFolder) -> None:
        self.images, self.classes, self.notices = images, images.classes, images.notices

    def __len__(self) -> int:
        return max(IMAGES, len(self.images))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index % len(self.images)]

    def set_epoch(self, epoch: int) -> None:
        """Draw the augmentation of `epoch` from now on."""
        self.images.set_epoch(epoch)


def _data(config: TrainConfig) -> Splits:
    splits: Any = tasks.get("resnet50").data(config)
    return dataclasses.replace(splits, train=Repeated(splits.train))


TASK = dataclasses.replace(tasks.get("resnet50"), data=_data)

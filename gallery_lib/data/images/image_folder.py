"""Training data set over an ImageNet-like folder, real or mock.

The layout is `ROOT/train/CLASS/…` and `ROOT/val/CLASS/…`. Classes, their numbers, the accepted
endings and the order of images are those of torchvision's ImageFolder. What ImageFolder would fail
on later is left out here and reported. `val/` takes the class numbers of `train/`.

A worker process turns a file into uint8 [S, S, 3] and nothing more. `finish_batch` makes the
normalised float batch on the device. uint8 batches are a quarter of the bytes to pass between
processes. Also, normalising a batch at once is cheaper than image by image.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import os
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gallery_lib.data.images.decode import centre_crop, load, random_resized_crop
from gallery_lib.data.images.listing import list_split
from gallery_lib.data.loading import shared_memory
from gallery_lib.data.seeded_items import SeededItems
from gallery_lib.kernels.image_batch import prepare_images, scale_and_shift
from gallery_lib.kernels.runtime import usage

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's RGB channels, in 0 to 1
STANDARD_DEVIATION = (0.229, 0.224, 0.225)


# Blocks of host memory without a user, by their number of values, which later batches take. The C
# library maps a fresh block for a batch, and every page costs a first-touch page fault. That can
# cost as much as filling the block; the block of an earlier batch is mapped already.
_free: defaultdict[int, deque[NDArray[np.float32]]] = defaultdict(lambda: deque(maxlen=4))


def empty(shape: tuple[int, ...]) -> torch.Tensor:
    """Return an uninitialised, contiguous float32 tensor of `shape` on the CPU.

    Its memory is used again once no tensor, view or graph refers to it.
    """
    free = _free[math.prod(shape)]
    try:
        block = free.pop()  # atomic: two threads never get the same block
    except IndexError:
        block = torch.empty(math.prod(shape)).numpy()  # torch allocates: aligned for its kernels
    lent = block.view()  # lives as long as the tensor's storage, which refers to it
    weakref.finalize(lent, free.append, block).atexit = False
    return torch.from_numpy(lent).view(shape)


def _empty(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return empty(shape) if device.type == "cpu" else torch.empty(shape, device=device)


def _in_parts(result: torch.Tensor, images: torch.Tensor) -> Iterable[tuple[torch.Tensor, ...]]:
    """Return pairs of both: on a CPU image by image, which stays in the cache between passes."""
    on_cpu = images.device.type == "cpu"
    return zip(result, images, strict=True) if on_cpu else [(result, images)]


def finish_batch(
    batch: Sequence[torch.Tensor],
    memory_format: torch.memory_format = torch.contiguous_format,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn a uint8 batch into (normalised images [N, 3, S, S], labels) on its own device.

    `batch` is (images uint8 [N, S, S, 3], labels [N]). The images come back in `memory_format`.
    Values are (image / 255 − mean) / standard deviation with ImageNet's constants, computed in
    float32 and returned in `dtype`. If a run uses its own kernels, one of them makes channels_last
    batches, with the same bits.
    """
    images, labels = batch
    if memory_format == torch.channels_last and usage.used(images.device):
        return prepare_images(
            images, mean=MEAN, standard_deviation=STANDARD_DEVIATION, dtype=dtype
        ), labels
    scale, shift = (torch.tensor(values) for values in scale_and_shift(MEAN, STANDARD_DEVIATION))
    # no synchronisation on a GPU: the stream orders the copies
    scale, shift = (values.to(images.device, non_blocking=True) for values in (scale, shift))
    if memory_format == torch.contiguous_format:
        planes = _empty((images.shape[0], 3, *images.shape[1:3]), images.device)  # [N, 3, S, S]
        for plane, image in _in_parts(planes, images):
            plane.copy_(image.movedim(-1, -3)).mul_(scale.view(3, 1, 1)).add_(shift.view(3, 1, 1))
    else:
        # whole rows [N, S, S·3] at a time: loops over the channels alone would run on three values
        width = images.shape[2]
        flat = _empty(tuple(images.flatten(2).shape), images.device)
        scale, shift = scale.repeat(width), shift.repeat(width)
        for rows, image in _in_parts(flat, images.flatten(2)):
            rows.copy_(image).mul_(scale).add_(shift)
        # a view for channels_last
        planes = flat.view(images.shape).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    return planes.to(dtype), labels


class ImageFolder(SeededItems[tuple[torch.Tensor, int]]):
    """Map-style data set whose item i is (image uint8 [S, S, 3], label).

    Batches are uint8 [N, S, S, 3] and int64 [N]. `train` gives a random resized crop, mirrored at
    random; otherwise items are centre crops. `classes` are those of the training data, whose
    numbers held-out data takes. By default they are the split's own. Images and their order are
    those of torchvision's ImageFolder. `notices` has lines about what is not read. Reading an item
    raises InputError that names a damaged file.

    Raises:
        InputError: for a folder of another layout.
    """

    finish_batch = staticmethod(finish_batch)
    collate = staticmethod(shared_memory.collate)

    def __init__(
        self,
        root: Path | str,
        split: str,
        image_size: int,
        train: bool,
        seed: int = 0,
        classes: Sequence[str] | None = None,
    ) -> None:
        super().__init__(train, seed)
        listing = list_split(root, split, classes)
        self.folder, self.classes, self.notices = listing.folder, listing.classes, listing.notices()
        self.image_size = image_size
        # flat arrays, not lists of objects: 1.28 million names pickle at once, and stay shared
        # after a fork
        names = [os.fsencode(name) for names in listing.images for name in names]
        self._names = np.array(names, dtype=np.bytes_)  # [images], paths below the class folder
        # [classes]: where each class ends in _names
        self._ends = list(itertools.accumulate(map(len, listing.images)))
        self._folders = [os.fsencode(self.folder / name) + b"/" for name in self.classes]

    def __len__(self) -> int:
        return len(self._names)

    def _item(self, index: int) -> tuple[torch.Tensor, int]:
        label, size = self.label(index), (self.image_size, self.image_size)
        path = self._path(index, label)
        if not self.train:
            return load(path, centre_crop, size), label
        rng = self.rng(index)
        mirror = bool(rng.random() < 0.5)
        # every epoch sees another crop, so the fast DCT's rounding is lost in the augmentation
        crop = functools.partial(random_resized_crop, rng)
        return load(path, crop, size, mirror=mirror, fast=True), label

    def label(self, index: int) -> int:
        """Return the class number of image `index` without reading the image."""
        return bisect.bisect_right(self._ends, index)

    def path(self, index: int) -> Path:
        """Return the file of image `index`."""
        return Path(os.fsdecode(self._path(index, self.label(index))))

    def _path(self, index: int, label: int) -> bytes:
        return self._folders[label] + bytes(self._names[index])

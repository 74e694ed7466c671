"""Images per second of our ImageFolder against torchvision's, both through torch's DataLoader.

    python3 benchmarks/loader.py           # one worker process, and one a core; two minutes each
    python3 benchmarks/loader.py --workers 4 --out benchmarks/results/MACHINE/loader-1.json

Both have the same files, the same batch size, and the same number of workers. Both give the same
result in the main process: a normalised float32 [32, 3, 224, 224] batch, contiguous, after random
resized crop and mirroring. Every value of a batch has been read once: a batch that comes through
shared memory costs its page faults only then. Our time includes finish_batch.

The two take turns, one pass over the same number of batches each, with nothing left in flight at a
turn's end. The first round warms files and workers up, and is not counted. The baseline is
torchvision's ImageFolder with its default reader (Pillow) and the usual v2 transforms. No training,
no GPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figures_file
import torch
import torchvision
from torch.utils.data import DataLoader, RandomSampler
from torchvision.transforms import v2

from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, ImageFolder
from gallery_lib.data.images.mock_imagenet import MockSpec, generate
from gallery_lib.errors import InputError
from gallery_lib.stats import ratio_of_medians
from gallery_lib.system import hardware, paths

SIZE, BATCH_SIZE = 224, 32
Finish = Callable[[Any], Any]
"""Function that makes a loader's batch ready for the model: images and labels."""


def data_sets(root: Path) -> dict[str, tuple[Any, Finish]]:
    """Return torchvision's data set and ours, each with what finishes its batches."""
    # Ours first: it reports what is wrong with a folder.
    own = ImageFolder(root, "train", SIZE, train=True, seed=0)
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STANDARD_DEVIATION),
        ]
    )
    theirs = torchvision.datasets.ImageFolder(str(root / "train"), transform)
    return {"torchvision": (theirs, lambda batch: batch), "ours": (own, own.finish_batch)}


def loader_of(dataset: Any, workers: int, images: int) -> DataLoader[Any]:
    """Return a shuffling DataLoader that keeps its workers and gives `images` images per turn."""
    return DataLoader(
        dataset,
        BATCH_SIZE,
        sampler=RandomSampler(dataset, replacement=images > len(dataset), num_samples=images),
        num_workers=workers,
        persistent_workers=True,
        collate_fn=getattr(dataset, "collate", None),
        drop_last=True,
    )


def seconds_per_image(loader: DataLoader[Any], finish: Finish) -> float:
    """Return the seconds per image of one pass, from asking for a batch to having the last."""
    images, checksum = 0, 0.0
    started = time.perf_counter()
    for batch in loader:
        ready, _ = finish(batch)
        images += len(ready)
        checksum += float(ready.sum())
    seconds = time.perf_counter() - started
    assert checksum == checksum and ready.is_contiguous() and ready.dtype == torch.float32
    return seconds / images


def compare(root: Path, workers: int, rounds: int, batches: int) -> dict[str, Any]:
    """Let both loaders take turns of `batches`; return images/s and the ratio."""
    parts, images = data_sets(root), batches * BATCH_SIZE
    loaders = {name: loader_of(dataset, workers, images) for name, (dataset, _) in parts.items()}
    epochs = itertools.count()

    def turn(name: str) -> list[float]:
        dataset, finish = parts[name]
        if name == "ours":
            dataset.set_epoch(next(epochs))
        return [seconds_per_image(loaders[name], finish)]

    seconds = figures_file.in_turns(parts, rounds, turn, warm_up=True)
    ratio = ratio_of_medians(seconds["torchvision"], seconds["ours"])
    rates = {name: 1 / figures_file.median(seconds[name]) for name in parts}
    return {"workers": workers, "images_per_second": rates, "ratio": dataclasses.asdict(ratio)}


def rows_of(found: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table of images per second by number of workers."""
    table = [["workers", "torchvision, images/s", "ours", "speed-up"]]
    for one in found:
        rates = [f"{rate:.0f}" for rate in one["images_per_second"].values()]
        table.append([str(one["workers"]), *rates, figures_file.ratio_text(one["ratio"])])
    return table


def main() -> int:
    """Measure, print the table, write the file, and return the exit code."""
    parser = figures_file.parser(__doc__)
    parser.add_argument(
        "--data", type=Path, help="ImageNet-like folder (default: the small mock, made if missing)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[1, hardware.cores()],
        help="numbers of worker processes, one after another (default: 1, and the cores)",
    )
    figures_file.add_numbers(
        parser,
        rounds=(8, "turns of each loader; more narrow the interval", 2),
        batches=(64, f"batches of {BATCH_SIZE} in a turn"),
    )
    arguments = parser.parse_args()
    if min(arguments.workers) < 1:
        raise InputError("--workers must be at least 1.")
    torch.set_num_threads(1)
    root = arguments.data or paths.data_dir("imagenet-small")
    if arguments.data is None:
        generate(root, MockSpec())
    found: list[dict[str, Any]] = []
    for workers in arguments.workers:
        found.append(compare(root, workers, arguments.rounds, arguments.batches))
        figures_file.show(rows_of(found[-1:]))
        values = {"batch_size": BATCH_SIZE, "image_size": SIZE, "results": found}
        figures_file.write(arguments.out, values, "Loading images", rows_of(found))
    return 0


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))

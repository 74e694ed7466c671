#!/usr/bin/env python3
"""Images per second of our ImageFolder against torchvision's, both through torch's DataLoader.

    python3 benchmarks/loader.py           # 1, 2, 4, … worker processes; two minutes each
    python3 benchmarks/loader.py --workers 4 --out benchmarks/results/MACHINE/loader-1.json

Both have the same files, the same batch size, and the same number of workers with one torch thread
each. Both give the same result in the main process: a normalised float32 [N, 3, 224, 224] batch,
contiguous, after random resized crop and mirroring. Every value of a batch has been read once: a
batch that comes through shared memory costs its page faults only then. Our time includes
finish_batch.

The two take turns, one pass over the same number of batches each, with nothing left in flight at a
turn's end. The first round warms files and workers up, and is not counted. Beside the rates stand
the CPU seconds of all processes for an image: more workers than free cores compete for them. The
baseline is torchvision's ImageFolder with its default reader (Pillow) and the usual v2 transforms.
No training, no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import psutil
import torch
import torchvision
from figures_file import conditions, exit_code, out_file, write_result
from torch.utils.data import DataLoader, RandomSampler
from torchvision.transforms import v2

from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, ImageFolder
from gallery_lib.data.images.mock_imagenet import PRESETS, generate
from gallery_lib.errors import InputError
from gallery_lib.stats import ratio_of_medians, turn_order
from gallery_lib.system import hardware, paths

SIZE = 224
BATCH_SIZE = 32
Batch = tuple[torch.Tensor, torch.Tensor]


def ours(root: Path) -> tuple[ImageFolder, Callable[[Any], Batch]]:
    """Return our data set, and the function that makes its batches ready for the model."""
    dataset = ImageFolder(root, "train", SIZE, train=True, seed=0)
    return dataset, dataset.finish_batch


def baseline(root: Path) -> tuple[torchvision.datasets.ImageFolder, Callable[[Any], Batch]]:
    """Return torchvision's data set with the usual transforms; its batches need no finishing."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STANDARD_DEVIATION),
        ]
    )
    return torchvision.datasets.ImageFolder(str(root / "train"), transform), lambda batch: (
        batch[0],
        batch[1],
    )


def worker_counts(cores: int) -> list[int]:
    """Return 1, 2, 4, … up to the cores, and the cores themselves: what a GPU has to be fed by."""
    return sorted({*(2**power for power in range(cores.bit_length())), cores})


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)


def loader_of(dataset: Any, workers: int, images: int) -> DataLoader[Any]:
    """Return a shuffling DataLoader that keeps its workers and gives `images` images per turn."""
    sampler = RandomSampler(dataset, replacement=images > len(dataset), num_samples=images)
    return DataLoader(
        dataset,
        BATCH_SIZE,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=True,
        worker_init_fn=_one_thread,
        collate_fn=getattr(dataset, "collate", None),
        drop_last=True,
    )


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its workers so far."""
    own = psutil.Process()
    return sum(
        times.user + times.system
        for times in (process.cpu_times() for process in (own, *own.children(recursive=True)))
    )


def turn(loader: DataLoader[Any], finish: Callable[[Any], Batch]) -> float:
    """Return the seconds per image of one pass over `loader`.

    The time runs from asking for the first batch to having the last.
    """
    images, checksum = 0, 0.0
    started = time.perf_counter()
    for batch in loader:
        ready, _ = finish(batch)
        images += len(ready)
        checksum += float(ready.sum())
    seconds = time.perf_counter() - started
    if (
        checksum != checksum
        or ready.dtype != torch.float32
        or ready.shape[1:] != (3, SIZE, SIZE)
        or not ready.is_contiguous()
    ):
        raise AssertionError(
            f"a loader gave {ready.dtype} {tuple(ready.shape)}, not contiguous float32 "
            f"[N, 3, {SIZE}, {SIZE}]"
        )
    return seconds / images


def compare(root: Path, workers: int, rounds: int, batches: int) -> dict[str, Any]:
    """Let both loaders take turns; return images/s, CPU seconds, and the ratio with its interval.

    Args:
        root: the ImageNet-like folder.
        workers: worker processes of each loader.
        rounds: counted turns of each loader.
        batches: batches in a turn.
    """
    own = ours(root)  # comes first: it reports what is wrong with a folder
    parts = {"torchvision": baseline(root), "ours": own}
    loaders = {
        name: loader_of(dataset, workers, batches * BATCH_SIZE)
        for name, (dataset, _) in parts.items()
    }
    seconds: dict[str, list[list[float]]] = {name: [] for name in parts}
    cpu: dict[str, list[float]] = {name: [] for name in parts}
    for number in range(rounds + 1):
        for name in turn_order(parts, number + 1):
            dataset, finish = parts[name]
            if isinstance(dataset, ImageFolder):
                dataset.set_epoch(number)
            before = cpu_seconds()
            took = turn(loaders[name], finish)
            if number:
                seconds[name].append([took])
                cpu[name].append((cpu_seconds() - before) / (batches * BATCH_SIZE))
    ratio = ratio_of_medians(seconds["torchvision"], seconds["ours"])
    rates = {
        name: sorted(1 / block[0] for block in blocks)[len(blocks) // 2]
        for name, blocks in seconds.items()
    }
    return {
        "workers": workers,
        "images_per_second": rates,
        "cpu_seconds_per_image": {name: statistics.median(values) for name, values in cpu.items()},
        "ratio": {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high, "confidence": 0.99},
        "rounds": rounds,
        "images_per_turn": batches * BATCH_SIZE,
        "seconds_per_image": {
            name: [block[0] for block in blocks] for name, blocks in seconds.items()
        },
    }


def report(results: list[dict[str, Any]], root: Path) -> dict[str, Any]:
    """Return the results for the JSON file, with the conditions of the measurement."""
    return {
        **conditions(),
        "versions": {
            name: version(name)
            for name in ("torch", "torchvision", "simplejpeg", "pillow", "numpy")
        },
        "data": "mock ImageNet" if (root / "manifest.json").is_file() else "the user's own",
        "batch_size": BATCH_SIZE,
        "image_size": SIZE,
        "results": results,
    }


def main() -> int:
    """Parse the command line, measure, print the table, write the JSON, return the exit code."""
    parser = argparse.ArgumentParser(
        description="Images/s of our ImageFolder against torchvision's."
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="ImageNet-like folder of images (default: the small mock, made if missing)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=worker_counts(hardware.cores()),
        help="numbers of worker processes to measure, one after another (default: 1, 2, 4, … up to "
        "the cores)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=8,
        help="turns of each loader; more narrow the interval, and take longer (default: 8)",
    )
    parser.add_argument(
        "--batches", type=int, default=64, help=f"batches of {BATCH_SIZE} in a turn (default: 64)"
    )
    parser.add_argument(
        "--out", type=out_file, help="JSON file for the figures (default: printed only)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    if min(args.workers) < 1 or args.rounds < 2 or args.batches < 1:
        raise InputError("--workers and --batches must be at least 1, --rounds at least 2.")
    root = args.data or paths.data_dir("imagenet-small")
    if args.data is None:
        generate(root, PRESETS["small"])
    print(
        "workers   torchvision        ours   ratio [99 % interval]   CPU ms an image      "
        "(images/s; float32 [32, 3, 224, 224] batches)"
    )
    results = []
    for workers in args.workers:
        result = compare(root, workers, args.rounds, args.batches)
        rates, ratio = result["images_per_second"], result["ratio"]
        interval = f"{ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        cpu = " and ".join(
            f"{1e3 * value:.2f}" for value in result["cpu_seconds_per_image"].values()
        )
        print(
            f"{workers:7d} {rates['torchvision']:13.1f} {rates['ours']:11.1f}   {interval:23} "
            f"{cpu}",
            flush=True,
        )
        results.append(result)
        if args.out:
            write_result(args.out, report(results, root))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))

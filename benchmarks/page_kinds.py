"""Kinds of published files: the name of each benchmark's files, and the table that shows them.

A new kind of file gets a `Kind`. A file without one is refused, so `results/` holds nothing that no
page shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench_summary import long_inputs
from checkpoint_table import checkpoints
from page_tables import (
    ddp,
    full_size,
    gallery,
    host_time,
    loader,
    own_script,
    resnet50,
    sweep,
    trust,
    two_processes,
    waterfall,
)
from published import File
from roofline_table import rooflines
from startup_table import startup

from gallery_lib.errors import InputError


@dataclass(frozen=True)
class Kind:
    """One question that a benchmark answers.

    It holds how the names of its files begin, its heading, how to read its figures, the command
    that measures it, and its tables.
    """

    prefix: str
    heading: str
    reading: str
    command: str
    table: Callable[[Sequence[File]], str] | None  # None: no table yet; the raw file is linked
    needs_gpu: bool = False


KINDS = (
    Kind(
        "waterfall-",
        "One technique after another",
        "Each line has one technique more than the line above it.",
        "gallery bench --waterfall TASK",
        waterfall,
    ),
    Kind(
        "rooflines",
        "How near the limits a step is",
        "Seconds that a step would take at the rates of this machine's matrix products and copies, "
        "measured in the same run, over those that it takes: ours at O1, the tasks' own sizes.",
        "python3 benchmarks/rooflines.py",
        rooflines,
    ),
    Kind(
        "startup",
        "How soon a run starts",
        "Seconds from the command to the first step that is counted; "
        "the second run finds what the first one compiled. From a cold cache: what the first "
        "minute after the command brings.",
        "python3 benchmarks/startup.py",
        startup,
    ),
    Kind(
        "on-a-gpu",
        "The first minutes on a GPU",
        "Steps of seven variants with batches on the device, tests, own kernels and the loader.",
        "python3 benchmarks/on_a_gpu.py",
        None,
        needs_gpu=True,
    ),
    Kind(
        "host-time",
        "What a step on CUDA takes of the host",
        "Milliseconds in which the host queues a step, and kernels in it; a device in software "
        "stands in where there is no GPU.",
        "python3 benchmarks/host_time.py",
        host_time,
    ),
    Kind(
        "resnet50-largest",
        "ResNet-50 at the largest batch",
        "Found by doubling, on a GPU.",
        "python3 benchmarks/bench.py MACHINE",
        None,
        needs_gpu=True,
    ),
    Kind(
        "resnet50",
        "ResNet-50 at 224 pixels",
        "Batch 16; every pair in turns, with parity.",
        "python3 benchmarks/resnet50.py",
        resnet50,
    ),
    Kind(
        "long-inputs",
        "Long inputs",
        "BERT and BART at 512 tokens.",
        "python3 benchmarks/bench.py MACHINE --name long-inputs",
        long_inputs,
    ),
    Kind(
        "two-processes",
        "Two processes that share the cores",
        "Eager O1 with DistributedDataParallel against ours, in turns, with parity.",
        "python3 benchmarks/two_processes.py",
        two_processes,
    ),
    Kind(
        "own-script",
        "The lines of README in a script of one's own",
        "`docs/examples/plain.py` and `accelerated.py`, which differ in the lines that README "
        "shows, in turns: processes of their own.",
        "python3 benchmarks/own_script.py",
        own_script,
    ),
    Kind(
        "checkpoints",
        "What checkpoints cost",
        "Blocks of steps with a checkpoint and without, in turns; a block lasts until its "
        "checkpoint is whole. The copy is what one step waits for.",
        "python3 benchmarks/checkpoints.py",
        checkpoints,
    ),
    Kind(
        "loader",
        "Loading images",
        "The gallery's image folder against torchvision's, in turns.",
        "python3 benchmarks/loader.py",
        loader,
    ),
    Kind(
        "ddp-real-",
        "Two hosts, real training",
        "ResNet-50 on two hosts of one core each, over an emulated link: "
        "step time of DDP's own way over that of ours.",
        "gallery lab run -- benchmarks/ddp_benchmark.py",
        ddp,
    ),
    Kind(
        "ddp-2x4-",
        "Two hosts of four processes, replayed",
        "A time-dilated replay of recorded ResNet-50 steps on an emulated link: step time of DDP's "
        "own way over that of ours.",
        "python3 benchmarks/ddp_lab.py run",
        ddp,
    ),
    Kind(
        "sweep",
        "Eleven models on one to eight hosts, replayed",
        "A time-dilated replay on an emulated link. `acc_ratio`: DDP's own step time over that of "
        "the way that the tuner chose.",
        "python3 benchmarks/ddp_lab.py sweep",
        sweep,
    ),
    Kind(
        "gallery",
        "The notebooks",
        "Each notebook once, headless: how long it took, and the speed-up that it found, over "
        "eager at the same precision.",
        "python3 benchmarks/gallery.py",
        gallery,
    ),
    Kind(
        "trust",
        "Can the comparison be believed?",
        "Code compared with itself, and with planted defects.",
        "python3 benchmarks/trust.py",
        trust,
    ),
    Kind(
        "full-size",
        "Full sizes",
        "A few steps of each task, to see whether they run; no measurement of speed.",
        "python3 benchmarks/full_settings.py",
        full_size,
    ),
    Kind(
        "processes",
        "How alike processes are",
        "Step times of processes that run the same code.",
        "python3 benchmarks/processes.py",
        None,
    ),
    Kind(
        "kernels",
        "CUDA kernels",
        "Each kernel against torch's, on a GPU.",
        "python3 benchmarks/kernels.py",
        None,
        needs_gpu=True,
    ),
)
"""Kinds in the order of a page; benches come before them."""
BENCHES = ("bench-small", "bench-large")


def kind_of(file: File) -> Kind | None:
    """Return the kind of a file; None for a bench.

    Raises:
        InputError: for a name of no kind.
    """
    if file.name.startswith(BENCHES):
        return None
    kinds = [kind for kind in KINDS if file.name.startswith(kind.prefix)]
    if not kinds:
        known = ", ".join([*BENCHES, *(kind.prefix for kind in KINDS)])
        raise InputError(
            f"{file.path}: no page shows files of this name. Names begin with one of: {known}.",
            parameter=str(file.path),
        )
    return kinds[0]

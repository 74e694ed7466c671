"""Options of the commands that run, show and measure, and of programs of the network benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option


@dataclass(frozen=True)
class BatchConfig:
    """Options of `gallery run`, which runs notebooks headless."""

    profile: Literal["quick", "full"] | None = None
    """Parameters from notebooks/profiles/. Default: the notebooks' own."""
    deadline: float | None = option(None, minimum=1)
    """Seconds after which a notebook is ended. Default: wait."""
    resume: bool = False
    """Go on with the batch in --out; keep what passed with the same notebook and versions."""
    out: str | None = None
    """Folder of the executed notebooks and reports. Default: a new one below runs/."""


@dataclass(frozen=True)
class RooflineConfig:
    """Options of `gallery roofline`, beside those of training."""

    rounds: int = 8
    """Turns of the limits, a step, and a profiled step. More are steadier, and take longer."""
    out: str | None = None
    """Folder of roofline.json. Default: a new one below runs/."""


@dataclass(frozen=True)
class CompareConfig:
    """Options of comparing two variants (see measure/comparison/compare.py)."""

    rounds: int = option(16, minimum=4)
    """Turns of each variant. More narrow the interval, and take longer."""
    block_steps: int = option(4, minimum=2)
    """Steps in one turn. The first of each does not count."""
    parity_steps: int = 3
    """First steps checked against a float64 run, which is slow."""


@dataclass(frozen=True)
class BenchConfig:
    """Options of `gallery bench`, which measures tasks in several variants (see measure/bench/)."""

    variants: str | None = None
    """Variants, with commas between. The eager one always takes part. Default: all."""
    amp_level: Literal["auto", "O0", "O1"] = "auto"
    """Precision of all variants. auto is O1 where the device computes in bfloat16, else O0."""
    profile: Literal["auto", "quick", "large", "full"] = "auto"
    """Sizes of the tasks. quick is for a few cores; large has quick's batches with images of 224²
    and sequences of 128. auto is full on a GPU, else quick."""
    batch_size: int | None = None
    """Samples per process and step. Default: the profile's."""
    image_size: int | None = option(None, minimum=32)
    """Height and width of input images in pixels. Default: the profile's."""
    sequence_length: int | None = option(None, minimum=8)
    """Tokens or frames per sample. Default: the profile's."""
    workers: int | None = option(None, minimum=0)
    """Data-loading processes per training process. Default: 1; on a GPU one per core, at most 16.
    """
    threads: int | None = None
    """CPU threads per process. Default: all cores."""
    rounds: int | None = option(None, minimum=4)
    """Turns of each variant. More narrow the interval, and take longer. Default: the profile's."""
    block_steps: int | None = option(None, minimum=2)
    """Steps in one turn. Default: the profile's."""
    data_dir: str | None = None
    """Data folder. Default: the mock data that prepare.sh makes."""
    resume: bool = False
    """Go on with the bench in --out; keep tasks measured with the same options and versions."""
    out: str | None = None
    """Folder of results, tables and plots. Default: a new one below runs/."""


@dataclass(frozen=True)
class LabNameConfig:
    """Options of `gallery lab down`: the lab to take down."""

    name: str = "lab"
    """Name of the lab. Give one to have several labs up."""


@dataclass(frozen=True)
class LabConfig(LabNameConfig):
    """Options of `gallery lab up`: hosts on this machine with emulated links (see cluster/)."""

    hosts: int = option(2, maximum=64)
    """Hosts of the lab."""
    rate: str = "1gbit"
    """Rate of each host's link, in either direction: 100mbit, 2.5gbit."""
    cpus: float | None = option(None, minimum=0.05)
    """Cores' worth of time for each host. Default: an equal part of all."""


@dataclass(frozen=True)
class LabRunConfig(LabNameConfig):
    """Options of `gallery lab run`, which starts a command on every host of a lab."""

    nproc_per_node: int = 1
    """Processes that torchrun starts on each host."""
    torchrun: bool = True
    """Start a Python script over torchrun; --no-torchrun starts any command, once on each host."""


@dataclass(frozen=True)
class StrategiesConfig:
    """Options of a measurement in which strategies of averaging gradients take turns."""

    width: int = option(512, minimum=16)
    """Width of the four layers that are trained."""
    rounds: int = option(4, minimum=4)
    """Turns of each strategy. More narrow the intervals, and take longer."""
    block_steps: int = 3
    """Counted steps in one turn."""
    out: str | None = None
    """File for the figures, as JSON."""


@dataclass(frozen=True)
class ConvergenceConfig:
    """Options of the convergence check, which learns digits with every wire format."""

    epochs: int = 8
    """Passes over the digits."""
    seeds: int = option(4, minimum=2)
    """How often, each time from other weights. More tell smaller differences apart."""
    out: str | None = None
    """File for the scores, as JSON."""

"""Options of the commands that run, show and measure, and of programs of the network benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.notebooks import NotebookConfig
from gallery_lib.config.options import option, same_as


@dataclass(frozen=True)
class BatchConfig:
    """Options of `gallery run`, which runs notebooks headless."""

    profile: Literal["quick", "full"] | None = None
    """Parameters from notebooks/profiles/. Default: the notebooks' own."""
    deadline: float | None = option(None, unit="seconds", minimum=1)
    """End a notebook that takes longer. Default: wait."""
    resume: bool = False
    """Go on with the batch in --out; keep what passed with the same notebook and versions."""
    out: str | None = None
    """Folder of the executed notebooks and reports. Default: a new one below runs/."""


@dataclass(frozen=True)
class RooflineConfig:
    """Options of `gallery doctor --roofline`, beside those of training."""

    roofline: str | None = None
    """Measure this task's step against the machine's limits. Takes the options of training, and a
    minute or more."""
    rounds: int = option(8, unit="turns")
    """Turns of the limits, a step, and a profiled step. More are steadier, and take longer."""
    out: str | None = None
    """Folder of roofline.json. Default: a new one below runs/."""


@dataclass(frozen=True)
class CompareConfig:
    """Options of comparing two variants (see measure/comparison/compare.py)."""

    rounds: int = option(16, unit="turns", minimum=4)
    """Turns of each variant. More narrow the interval, and take longer."""
    starts: int = same_as(NotebookConfig, "starts")
    block_steps: int = option(4, unit="steps", minimum=2)
    """Steps in one turn. The first of each does not count."""
    parity_steps: int = option(3, unit="steps")
    """First steps checked against a float64 run, which is slow."""
    confidence: float = option(0.99, minimum=0.5, maximum=0.9999)
    """Confidence level of the speed-up's interval."""


@dataclass(frozen=True)
class BenchConfig:
    """Options of `gallery bench`, which measures tasks in several variants (see measure/bench/)."""

    variants: str | None = None
    """Variants, with commas between. The eager one always takes part. Default: all."""
    amp_level: Literal["auto", "O0", "O1"] = "auto"
    """Precision of all variants. auto is O1 where the device computes in bfloat16, else O0."""
    waterfall: str | None = None
    """Measure this task alone, with one technique after another switched on."""
    profile: Literal["auto", "quick", "large", "full"] = "auto"
    """Sizes of the tasks. quick is for a few cores; large has quick's batches with images of 224²
    and sequences of 128. auto is full on a GPU, else quick."""
    batch_size: int | None = same_as(NotebookConfig, "batch_size")
    image_size: int | None = same_as(NotebookConfig, "image_size")
    sequence_length: int | None = same_as(NotebookConfig, "sequence_length")
    workers: int | None = option(None, unit="processes", minimum=0)
    """Data-loading processes per training process. Default: 1; on a GPU one per core, at most 16.
    """
    threads: int | None = option(None, unit="threads")
    """CPU threads per process. Default: all cores."""
    rounds: int | None = same_as(NotebookConfig, "rounds")
    starts: int = same_as(NotebookConfig, "starts")
    block_steps: int | None = same_as(NotebookConfig, "block_steps")
    parity_steps: int | None = option(None, unit="steps")
    """First steps checked against a float64 run. Default: the profile's."""
    confidence: float = same_as(CompareConfig, "confidence")
    data_dir: str | None = None
    """Data folder. Default: the mock data that prepare.sh makes."""
    seed: int = same_as(NotebookConfig, "seed")
    resume: bool = False
    """Go on with the bench in --out; keep tasks measured with the same options and versions."""
    out: str | None = None
    """Folder of results, tables and plots. Default: a new one below runs/."""


@dataclass(frozen=True)
class LabConfig:
    """Options of `gallery lab up`: hosts on this machine with emulated links (see cluster/)."""

    hosts: int = option(2, unit="hosts", maximum=64)
    """Hosts of the lab."""
    rate: str = "1gbit"
    """Rate of each host's link, in either direction: 100mbit, 2.5gbit."""
    cpus: float | None = option(None, unit="cores", minimum=0.05)
    """Cores' worth of time for each host. Default: an equal part of all."""
    name: str = "lab"
    """Name of the lab. Give one to have several labs up."""


@dataclass(frozen=True)
class LabRunConfig:
    """Options of `gallery lab run`, which starts a command on every host of a lab."""

    nproc_per_node: int = option(1, unit="processes")
    """Processes that torchrun starts on each host."""
    torchrun: bool = True
    """Start a Python script over torchrun; --no-torchrun starts any command, once on each host."""
    master_port: int = option(29400, minimum=1, maximum=65535)
    """Port on host 0, where the processes meet."""
    name: str = same_as(LabConfig, "name")


@dataclass(frozen=True)
class LabNameConfig:
    """Options of `gallery lab down`: the lab to take down."""

    name: str = same_as(LabConfig, "name")


@dataclass(frozen=True)
class StrategiesConfig:
    """Options of a measurement in which strategies of averaging gradients take turns."""

    width: int = option(512, unit="units", minimum=16)
    """Width of the four layers that are trained."""
    rounds: int = option(4, unit="turns", minimum=4)
    """Turns of each strategy. More narrow the intervals, and take longer."""
    block_steps: int = option(3, unit="steps")
    """Counted steps in one turn."""
    confidence: float = same_as(CompareConfig, "confidence")
    out: str | None = None
    """File for the figures, as JSON."""


@dataclass(frozen=True)
class ConvergenceConfig:
    """Options of the convergence check, which learns digits with every wire format."""

    epochs: int = option(8, unit="epochs")
    """Passes over the digits."""
    seeds: int = option(4, unit="seeds", minimum=2)
    """How often, each time from other weights. More tell smaller differences apart."""
    out: str | None = same_as(StrategiesConfig, "out")


@dataclass(frozen=True)
class RecordConfig:
    """Options of recording a timeline (see measure/replay/)."""

    steps: int = option(5, unit="steps", minimum=3)
    """Steps that are recorded after a warm-up; times are medians over them."""


@dataclass(frozen=True)
class ReplayConfig:
    """Options of replaying timelines, and the strategies of averaging gradients that take part."""

    stretch: float = option(1.0, minimum=1.0, maximum=1000.0)
    """Multiply waits by it and divide rates and step times, where this machine is too slow."""
    wires: str = "exact"
    """Wire formats, with commas between, each tried in all strategies."""
    only: str | None = None
    """Only these strategies, with semicolons between, beside DDP's own. Default: all."""
    rounds: int = option(6, unit="turns", minimum=4)
    """Turns of each strategy. More turns take longer."""
    block_steps: int = option(4, unit="steps")
    """Counted steps in a turn."""

"""Options of the commands that run, show and measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option


@dataclass(frozen=True)
class BatchConfig:
    """Options of `gallery run`, which runs notebooks headless."""

    profile: Literal["quick", "full"] | None = option(
        None,
        "Parameters from notebooks/profiles/, for the notebooks that have them. "
        "Default: the notebooks' own.",
    )
    deadline: float | None = option(
        None, "End a notebook that takes longer. Default: wait.", unit="seconds", minimum=1
    )
    retries: int = option(
        0, "How often a notebook that did not pass is run again.", unit="times", minimum=0
    )
    resume: bool = option(
        False,
        "Continue the batch in --out. Keep what passed with the same notebook, "
        "parameters and versions.",
    )
    out: str | None = option(
        None, "Folder of the executed notebooks and reports. Default: a new one below runs/."
    )


@dataclass(frozen=True)
class RooflineConfig:
    """Options of `gallery doctor --roofline`, beside those of training."""

    roofline: str | None = option(
        None,
        "Measure this task's training step against the machine's limits: a name from "
        "`gallery list`, or FILE.py:NAME. Takes the options of training; a minute or more, "
        "since every graph is compiled anew.",
    )
    rounds: int = option(
        8,
        "Turns of the limits, a step, and a profiled step. The middle half of those that touch no "
        "new memory counts. More are steadier, and take longer.",
        unit="turns",
        minimum=1,
    )
    out: str | None = option(
        None, "Folder of roofline.json and its picture. Default: a new one below runs/."
    )


@dataclass(frozen=True)
class CompareConfig:
    """Options of comparing two variants (see measure/comparison/compare.py)."""

    rounds: int = option(
        16,
        "Turns of each variant; the interval comes from these. More turns narrow it, "
        "and take longer.",
        unit="turns",
        minimum=4,
    )
    starts: int = option(
        1,
        "Times that both variants start anew, each time for that many turns. Processes "
        "of one code differ, and several starts average it. Each costs a start.",
        minimum=1,
        maximum=100,
    )
    block_steps: int = option(
        4, "Steps in one turn. The first of each does not count.", unit="steps", minimum=2
    )
    parity_steps: int = option(
        3, "First steps checked against a float64 run, which is slow.", unit="steps", minimum=1
    )
    confidence: float = option(
        0.99, "Confidence level of the speed-up's interval.", minimum=0.5, maximum=0.9999
    )


@dataclass(frozen=True)
class BenchConfig:
    """Options of `gallery bench`, which measures tasks in several variants (see measure/bench/)."""

    variants: str | None = option(
        None,
        "Variants, with commas between; `as-it-comes` or `best` stand for these forms "
        "of all peers. The eager one of the precision, the reference of all, always "
        "takes part. Default: all.",
    )
    peer_modes: str | None = option(
        None,
        "Modes of torch.compile that the best forms of the peers choose from, with "
        "commas between. They take turns once for each task, for one to three minutes; "
        "`default` spares that. Default: all that may be the fastest on this device.",
    )
    amp_level: Literal["auto", "O0", "O1"] = option(
        "auto",
        "Precision of all variants: fp32 (O0) or mixed (O1). auto is O1 where the "
        "device computes in bfloat16, else O0.",
    )
    waterfall: str | None = option(
        None, "Measure this task alone, with one technique after another switched on."
    )
    profile: Literal["auto", "quick", "large", "full"] = option(
        "auto",
        "Sizes of the tasks. quick is for a few cores. large has quick's batches, "
        "images of 224² and sequences of up to 128, and fewer turns. auto is full on a "
        "GPU, else quick.",
    )
    batch_size: int | None = option(
        None, "Samples per step. Default: the profile's.", unit="samples", minimum=1
    )
    image_size: int | None = option(
        None, "Height and width of input images. Default: the profile's.", unit="pixels", minimum=32
    )
    sequence_length: int | None = option(
        None,
        "Tokens or frames per sample. Default: the profile's.",
        unit="tokens or frames",
        minimum=8,
    )
    workers: int | None = option(
        None,
        "Processes that load data, per training process. Raise it where steps wait for "
        "data. On a CPU they share the cores with the training. Default: 1; on a GPU, one per "
        "core, 16 at most.",
        unit="processes",
        minimum=0,
    )
    threads: int | None = option(
        None, "CPU threads per process. Default: all cores.", unit="threads", minimum=1
    )
    rounds: int | None = option(
        None,
        "Turns of each variant. More narrow the intervals, and take longer. Default: "
        "the profile's.",
        unit="turns",
        minimum=4,
    )
    starts: int = option(
        1,
        "Times that all variants start anew, each time for that many turns. Processes "
        "of one code differ, and several starts average it. Each costs a start.",
        minimum=1,
        maximum=100,
    )
    block_steps: int | None = option(
        None,
        "Steps in one turn, the first not counted. Default: the profile's.",
        unit="steps",
        minimum=2,
    )
    parity_steps: int | None = option(
        None,
        "First steps checked against a float64 run, which is slow. Default: the profile's.",
        unit="steps",
        minimum=1,
    )
    confidence: float = option(
        0.99, "Confidence level of the intervals.", minimum=0.5, maximum=0.9999
    )
    alive: int | None = option(
        None,
        "Variants that are alive and take turns at a time. More share their rounds, and "
        "need more memory. Default: as many as fit into memory, 2 on a GPU.",
        unit="variants",
        minimum=2,
    )
    roofline: bool = option(
        False,
        "Also hold ours against the machine's limits, after the turns, as `gallery doctor "
        "--roofline` does on CPUs. Costs a start and a compilation for each task.",
    )
    data_dir: str | None = option(
        None,
        "Data folder. Default: the mock data that prepare.sh makes. Image classifiers "
        "get an output for each class of the folder; without a folder they have "
        "ImageNet's 1000.",
    )
    seed: int = option(
        0,
        "Seed of weights, shuffling and augmentation. Runs of one seed start alike.",
        minimum=0,
        maximum=2**32 - 1,
    )
    resume: bool = option(
        False,
        "Continue the bench in --out. Keep tasks measured with the same options, "
        "package, versions and machine.",
    )
    out: str | None = option(
        None, "Folder of results, tables and plots. Default: a new one below runs/."
    )

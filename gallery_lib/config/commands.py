"""Options of the commands that run, show and measure the gallery: `run`, `site`, `bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option


@dataclass(frozen=True)
class BatchConfig:
    """Options of `gallery run`, which runs notebooks headless."""

    profile: Literal["quick", "full"] | None = option(
        None,
        "parameters from notebooks/profiles/, for the notebooks that have them; "
        "default: the notebooks' own",
    )
    jobs: int = option(
        1,
        "notebooks at a time, each on its share of the cores or GPUs; "
        "they disturb each other's figures",
        unit="notebooks",
        minimum=1,
    )
    deadline: float | None = option(
        None, "end a notebook that takes longer; default: wait", unit="seconds", minimum=1
    )
    retries: int = option(
        0, "how often a notebook that did not pass is run again", unit="times", minimum=0
    )
    memory_limit: float | None = option(
        None,
        "end a notebook whose processes together hold more; default: no limit",
        unit="GiB",
        minimum=0.01,
    )
    resume: bool = option(
        False,
        "go on in --out: keep what passed with the same notebook, parameters, package and versions",
    )
    out: str | None = option(
        None, "folder of the executed notebooks and reports; default: a new one below runs/"
    )


@dataclass(frozen=True)
class SiteConfig:
    """Options of `gallery site`, which builds the gallery as pages for a browser."""

    run: str | None = option(
        None,
        "folder of `gallery run` whose notebooks are shown with their outputs; default: none are",
    )
    out: str | None = option(
        None,
        "folder of the site; one that is there is replaced; default: build/site in the checkout",
    )


@dataclass(frozen=True)
class BenchConfig:
    """Options of `gallery bench`, which measures tasks in several variants (see measure/bench/)."""

    variants: str | None = option(
        None,
        "which variants, with commas between, or `as-it-comes` or `best`, which stand for the "
        "forms of all peers; default: all. "
        "The eager one of the precision, which they are held against, is always in",
    )
    peer_modes: str | None = option(
        None,
        "torch.compile's modes that the best forms of the peers choose from, with commas between; "
        "they take turns once for each task, which takes one to three minutes; default: all that "
        "may be the fastest on this device. `default` spares that",
    )
    amp_level: Literal["auto", "O0", "O1"] = option(
        "auto",
        "precision of all that are held against one another: fp32 (O0) or mixed (O1); auto is O1 "
        "where the device computes in bfloat16, else O0",
    )
    waterfall: str | None = option(
        None, "instead: this task with one technique after another switched on"
    )
    profile: Literal["auto", "quick", "large", "full"] = option(
        "auto",
        "sizes of the tasks: quick is for a few cores; large has quick's batches, images of 224² "
        "and sequences of up to 128, and fewer turns; auto is full on a GPU, else quick",
    )
    batch_size: int | None = option(
        None, "samples a step; default: the profile's", unit="samples", minimum=1
    )
    image_size: int | None = option(
        None, "height and width of input images; default: the profile's", unit="pixels", minimum=32
    )
    sequence_length: int | None = option(
        None,
        "tokens or frames per sample; default: the profile's",
        unit="tokens or frames",
        minimum=8,
    )
    workers: int = option(
        1, "processes that load data, per training process", unit="processes", minimum=0
    )
    threads: int | None = option(
        None, "CPU threads per process; default: all cores", unit="threads", minimum=1
    )
    rounds: int | None = option(
        None, "turns that each variant gets; default: the profile's", unit="turns", minimum=4
    )
    starts: int = option(
        1,
        "times that all are started anew, each time for that many turns: "
        "processes of one code differ",
        minimum=1,
        maximum=100,
    )
    block_steps: int | None = option(
        None,
        "steps in one turn, the first not counted; default: the profile's",
        unit="steps",
        minimum=2,
    )
    parity_steps: int | None = option(
        None,
        "first steps checked against a float64 run; default: the profile's",
        unit="steps",
        minimum=1,
    )
    confidence: float = option(
        0.99, "confidence level of the intervals", minimum=0.5, maximum=0.9999
    )
    alive: int | None = option(
        None,
        "variants that are alive and take turns at a time; "
        "default: as many as fit into memory, 2 on a GPU",
        unit="variants",
        minimum=2,
    )
    data_dir: str | None = option(
        None,
        "data folder; default: the mock data that prepare.sh makes. Image classifiers get an "
        "output for each class of the folder, and ImageNet's 1000 without one",
    )
    seed: int = option(
        0, "seed of weights, shuffling and augmentation", minimum=0, maximum=2**32 - 1
    )
    resume: bool = option(
        False,
        "go on in --out: keep tasks that were measured with the same options, package, "
        "versions and machine",
    )
    out: str | None = option(
        None, "folder of results, tables and plots; default: a new one below runs/"
    )

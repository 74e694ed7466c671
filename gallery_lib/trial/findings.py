"""What holds a script back: sentences made of what was measured, the costliest first."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil

from gallery_lib.measure.comparison.pair import FAULT_SECONDS
from gallery_lib.system import hardware, spinning
from gallery_lib.system.machine_load import MachineLoad
from gallery_lib.trial.result import Form, Trial
from gallery_lib.trial.run import Reports

_MUCH = 0.25  # of a cycle: what takes so much of it is named
_SOME = 0.12
_ONE_PASS = ("Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "RAdam")  # that gallery_lib.optim has


def of(trial: Trial, look: Reports, load: MachineLoad) -> list[str]:
    """Return what stands out in the plain form of a trial; empty where nothing does."""
    if trial.plain is None or not trial.plain.cycle_seconds:
        return []
    found = [*_weighted(trial, trial.plain, look), *_of_threads(trial, look, load)]
    return [sentence for _, sentence in sorted(found, reverse=True)]


def _of_threads(trial: Trial, look: Reports, load: MachineLoad) -> Iterator[tuple[float, str]]:
    if any(model["device"] != "cpu" for model in trial.models):
        return
    threads, processes, cores = look.newest["threads"], trial.processes, hardware.cores()
    if processes > 1 and processes * threads > cores:
        yield (
            1.0,
            f"{processes} processes of {threads} threads share {cores} cores: threads that spin "
            "while they wait take them from those that have work. Give each process "
            f"{max(1, cores // processes)} (OMP_NUM_THREADS, torch.set_num_threads).",
        )
    elif threads > 1 and load.reasons() and not os.environ.keys() & {*spinning.VARIABLES}:
        yield (
            1.0,
            "Other work takes cores, and the script's threads spin while they wait for each other: "
            "that costs most of what the ratio shows. OMP_WAIT_POLICY=passive has them sleep, as "
            "gallery_lib does while other work is there.",
        )
    physical = min(cores, psutil.cpu_count(logical=False) or 1)
    if threads < physical and processes == 1:
        yield (
            0.1,
            f"PyTorch uses {threads} threads where {physical} cores are there "
            "(OMP_NUM_THREADS, torch.set_num_threads).",
        )


def _weighted(trial: Trial, plain: Form, look: Reports) -> Iterator[tuple[float, str]]:
    part = {share.name: share.seconds / plain.cycle_seconds for share in plain.shares}
    if (waiting := part.get("waiting for data", 0.0)) > _MUCH:
        yield (
            waiting,
            f"Waiting for data takes {waiting:.0%} of a step: more num_workers, "
            "persistent_workers=True, or cheaper transforms help; a faster model does not.",
        )
    stepping = part.get("optimizer", 0.0)
    unfused = [one["name"] for one in trial.optimizers if one["torchs"] and not one["fused"]]
    if stepping > _SOME and unfused:
        remedy = "it has no faster form"
        if unfused[0] in _ONE_PASS:
            remedy = "gallery_lib's goes over memory once"
        yield stepping, f"{unfused[0]}'s steps take {stepping:.0%} of a step: {remedy}."
    faults = plain.page_faults * FAULT_SECONDS / plain.cycle_seconds
    if faults > _SOME:
        yield (
            faults,
            f"About {plain.page_faults:,.0f} page faults in a step, roughly {faults:.0%} of it: "
            "the allocator gives memory back and takes it again. gallery_lib keeps it.",
        )
    between = part.get("between them", 0.0)
    items = look.newest["items"]
    on_cpu = all(model["device"] == "cpu" for model in trial.models)
    if items >= 2 * trial.cycle and (not on_cpu or between > _MUCH):
        yield (
            between,
            f"{items:.0f} tensors are read as Python numbers in a step (.item(), float(), if): "
            "Python's time here, a wait on a GPU. Sum them up as tensors, and read them now and "
            "then.",
        )
    elif between > _MUCH:
        yield (
            between,
            f"{between:.0%} of a step is neither data, model nor optimizer: Python between them, "
            "logging, metrics, or data that no DataLoader brings.",
        )
    bf16 = any(one["flops"] and one["dtype"] == "bfloat16" for one in look.newest["work"])
    if bf16 and on_cpu and not hardware.computes_in_bf16("cpu"):
        yield (
            1.0,
            "bfloat16 is emulated on this CPU, which has no instructions for it: fp32 is faster.",
        )

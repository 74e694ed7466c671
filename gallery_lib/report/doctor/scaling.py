"""Why a step on several processes takes longer than the same samples on one, part by part."""

from __future__ import annotations

from gallery_lib.console.table import Rows, rate, seconds, text_table
from gallery_lib.report.doctor.step_phases import EXPOSED, PHASES
from gallery_lib.train.results import Results

NOTICEABLE = 0.02
"""Share of the step on several processes from which on a longer part is shown."""


def scaling_text(one: Results, several: Results) -> str:
    """Return why a run on several processes is as fast as it is, beside the one on one process."""
    parts = [_gain(one, several), text_table(_phase_rows(one, several))]
    longer = {
        name: value
        for name, value in longer_by(one, several).items()
        if value > NOTICEABLE * several.step_seconds["p50"]
    }
    if not longer:
        return "\n".join([*parts, "- No part of the step takes longer than alone."])
    total = sum(longer.values())
    parts.append(
        f"A step on {several.world_size} takes {seconds(total)} longer than the same samples "
        "alone, because of"
    )
    causes = _causes(one, several)
    for name, value in sorted(longer.items(), key=lambda item: -item[1]):
        parts.append(f"- {name}, {seconds(value)} ({value / total:.0%}): {causes[name]}.")
    return "\n".join(parts)


def longer_by(one: Results, several: Results) -> dict[str, float]:
    """Return by how many seconds each part of a step on several processes takes longer.

    Each part is compared with the same part alone, for as many samples. `computing` is forward and
    backward pass without exposed communication, which is `communication`. Computation grows with
    the batch; the optimizer's step does not.
    """
    more = several.config["batch_size"] / one.config["batch_size"]
    alone, beside = one.phase_seconds, several.phase_seconds
    communication = beside.get("exposed_communication", 0.0)
    passes = [
        sum(phases.get(name, 0.0) for name in ("forward", "backward")) for phases in (alone, beside)
    ]
    return {
        "computing": passes[1] - communication - more * passes[0],
        "communication": communication,
        "input": beside.get("input", 0.0) - more * alone.get("input", 0.0),
        "optimizer": beside.get("optimizer", 0.0) - alone.get("optimizer", 0.0),
    }


def _gain(one: Results, several: Results) -> str:
    """Return a line with both rates and their ratio."""
    n = several.world_size
    rates = one.samples_per_second["global"], several.samples_per_second["global"]
    gain = rates[1] / rates[0]
    # On a CPU, n processes have the cores of one, so an n-fold gain is no yardstick.
    shared = several.environment["device"] == "cpu"
    efficiency = "on the same cores" if shared else f"scaling efficiency {gain / n:.0%}"
    return (
        f"{one.task}: {rate(rates[0])} on one process, {rate(rates[1])} on {n}: {gain:.2f}× "
        f"({efficiency})"
    )


def _phase_rows(one: Results, several: Results) -> Rows:
    """Return a table of the phases of both runs, side by side."""
    rows = [["phase", "1 process", f"{several.world_size} processes"]]
    for name, meaning in {**PHASES, "exposed_communication": EXPOSED}.items():
        times = [run.phase_seconds.get(name) for run in (one, several)]
        if any(time is not None for time in times):
            rows.append([meaning, *("" if time is None else seconds(time) for time in times)])
    sizes = [str(run.config["batch_size"]) for run in (one, several)]
    return [*rows, ["batch size of a process", *sizes]]


def _causes(one: Results, several: Results) -> dict[str, str]:
    """Return the cause behind each part of `longer_by`, and what to change."""
    n, on_cpu = several.world_size, several.environment["device"] == "cpu"
    threads, cores = several.config["threads"], several.environment["cores"]
    if on_cpu:
        shared = (
            f"{n} processes share the {cores} cores ({threads} thread(s) each, "
            f"{one.config['threads']} alone), and memory and caches with them. One process with "
            "all cores is the most that this host gives: add hosts or GPUs, not processes"
        )
    else:
        shared = (
            "the devices slow one another down: power, temperature, or too few host threads to "
            "feed them"
        )
    return {
        "computing": shared,
        "communication": (
            "gradients are averaged while nothing is left to compute: a larger batch, no_sync() "
            "over several batches, or fewer processes"
        ),
        "input": (
            f"the loaders of {n} processes share {cores} cores: fewer --workers each, or data that "
            "is cheaper to read"
        ),
        "optimizer": "every process updates all parameters, whatever the batch: a larger batch",
    }

"""What limits a run and what to change, by rules over the shares of its step.

Each rule names the figure that it rests on. What it returns is the weight of its advice, by which
advice is ordered (the share of the step, where there is one), and the text.
"""

from __future__ import annotations

from collections.abc import Callable

from gallery_lib.measure.comparison.process_spread import page_faults_part
from gallery_lib.report.doctor.step_phases import shares
from gallery_lib.system import hardware
from gallery_lib.train.results import Results

MUCH = {"input": 0.10, "optimizer": 0.25, "exposed_communication": 0.10, "page faults": 0.05}
"""Shares of a step from which on a phase is worth a change."""
LITTLE = 0.05
"""Weight of advice whose share of the step is not known."""

Weighted = tuple[float, str]


def advice(results: Results) -> list[str]:
    """Return what limits the run and what to change, most rewarding first.

    There is a single line when nothing stands out.
    """
    weighted = [line for rule in RULES if (line := rule(results)) is not None]
    if not weighted:
        return ["nothing stands out: forward and backward pass are the work itself."]
    return [text for _, text in sorted(weighted, reverse=True)]


def _much(results: Results, phase: str) -> float | None:
    """Return the share of a phase if it is worth a change, else None."""
    share = shares(results).get(phase, 0.0)
    return share if share >= MUCH[phase] else None


def _waits_for_data(results: Results) -> Weighted | None:
    if (share := _much(results, "input")) is None:
        return None
    workers, cores = results.config["workers"], results.environment["cores"]
    remedy = f"--workers {workers + 1}" if workers < cores else "smaller or pre-decoded data"
    return share, f"{share:.0%} of the step waits for data: try {remedy}."


def _updates_parameters(results: Results) -> Weighted | None:
    if (share := _much(results, "optimizer")) is None:
        return None
    remedy = (
        "a larger batch"
        if results.config["compiler_opt"]
        else "compiler-opt (its fused optimizer), or a larger batch"
    )
    return share, (
        f"{share:.0%} of the step is the optimizer, which costs the same for any batch: try "
        f"{remedy}."
    )


def _communicates(results: Results) -> Weighted | None:
    if (share := _much(results, "exposed_communication")) is None:
        return None
    return share, (
        f"{share:.0%} of the step is communication that no computation hides: a larger batch, or "
        "fewer processes."
    )


def _faults_pages(results: Results) -> Weighted | None:
    if results.config["compiler_opt"] or results.environment["device"] != "cpu":
        return None
    if (share := page_faults_part(results)) < MUCH["page faults"]:
        return None
    faults = f"{results.page_faults:,.0f} page faults, for memory that was given back"
    return (
        share,
        f"some {share:.0%} of the step are {faults}: try compiler-opt, which keeps it.",
    )


def _emulates_bfloat16(results: Results) -> Weighted | None:
    config = results.config
    if config["amp_level"] != "O1" or config["compiler_opt"]:
        return None
    if not hardware.emulated_bf16(results.environment):
        return None
    return 1.0, "this CPU has no bfloat16 units, so O1 is emulated: use O0, or compiler-opt."


def _breaks_the_graph(results: Results) -> Weighted | None:
    if (breaks := results.techniques.get("graph breaks")) is None:
        return None
    return LITTLE, (
        f"the model is not one graph, and what is between the breaks is compiled: {breaks}."
    )


def _lacks_the_allocator(results: Results) -> Weighted | None:
    state = results.techniques.get("allocator", "")
    if not state.startswith("not applied"):
        return None
    return LITTLE, f"the allocator technique was {state}."


RULES: tuple[Callable[[Results], Weighted | None], ...] = (
    _waits_for_data,
    _updates_parameters,
    _communicates,
    _faults_pages,
    _emulates_bfloat16,
    _breaks_the_graph,
    _lacks_the_allocator,
)

"""Phases of a step: what each is, its share of the median step, and a table of them."""

from __future__ import annotations

from gallery_lib.console.table import Rows, seconds
from gallery_lib.train.results import Results

PHASES = {
    "input": "waiting for the batch",
    "forward": "forward pass and loss",
    "backward": "backward pass",
    "optimizer": "optimizer",
}
EXPOSED = "  of it communication alone"
"""Label of `exposed_communication`, which is a part of `backward`."""


def shares(results: Results) -> dict[str, float]:
    """Return each phase's share of the median step.

    `exposed_communication` is a part of `backward`.
    """
    step = results.step_seconds["p50"]
    return {name: value / step for name, value in results.phase_seconds.items()}


def step_rows(results: Results) -> Rows:
    """Return a table of where the time of a run's median step goes, phase by phase."""
    share = shares(results)
    rows = [["phase", "time", "of the step"]]
    for name, meaning in PHASES.items():
        if name in share:
            rows.append([meaning, seconds(results.phase_seconds[name]), f"{share[name]:.0%}"])
            if name == "backward" and "exposed_communication" in share:
                exposed = results.phase_seconds["exposed_communication"]
                rows.append([EXPOSED, seconds(exposed), f"{share['exposed_communication']:.0%}"])
    rows.append(["whole step", seconds(results.step_seconds["p50"]), ""])
    return rows

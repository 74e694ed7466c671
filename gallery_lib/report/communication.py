"""Charts and tables of communication: step times, parity, and what was learned.

A title says what came out. One from a lab of hosts says that the links are emulated.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from gallery_lib.console.text import Rows, seconds
from gallery_lib.measure.communication.convergence import FP32, Scores
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effect, Effects
from gallery_lib.report import style
from gallery_lib.report.style import OURS, Chart, one_panel
from gallery_lib.stats import CONFIDENCE

EMULATED = "emulated link"
"""What titles and tables call the links of a lab."""
_MEBI = 2**20


def _rounds(effect: Effect) -> bool:
    """Return whether the technique rounds gradients, and so changes what is computed."""
    return bool(effect.options["wire"] != "exact")


def _step_times_title(effects: Effects) -> str:
    """Return what is certainly faster than DDP's own way, with gradients that are right."""
    gains = [
        (effect.ratio.ratio, name)
        for name, effect in effects.ways.items()
        if name not in (PLAIN, ALONE) and not effect.parity.startswith("FAILED")
        if effect.ratio and effect.ratio.verdict == "faster"
    ]
    gained = "no technique gains"
    if gains:
        ratio, name = max(gains)
        gained = f"{name} gains most, {ratio:.2f}×"
    took = seconds(effects.ways[PLAIN].seconds)
    return f"A step of {PLAIN}'s own way takes {took}; {gained}\n{effects.hosts}, {EMULATED}"


def step_times(effects: Effects) -> Chart:
    """Return each technique's step time: a mark for each step, a bar for the median."""
    interval = f"{CONFIDENCE:.0%} interval"
    rows = [
        [f"technique ({EMULATED})", "step time, median", f"{PLAIN} over it ({interval})", "verdict"]
    ]
    for name, effect in effects.ways.items():
        ratio = effect.ratio
        over = [str(ratio), ratio.verdict] if ratio else ["1, by definition", "baseline"]
        rows.append([name, seconds(effect.seconds), *over])

    def draw(axes: Any) -> None:
        for row, (name, effect) in enumerate(effects.ways.items()):
            axes.barh(
                row,
                1000 * effect.seconds,
                color={ALONE: style.OTHERS, PLAIN: style.PLAIN}.get(name, OURS),
                hatch="//" if _rounds(effect) else None,
                edgecolor="white",
            )
            steps = [1000 * step for steps in effect.rounds for step in steps]
            axes.plot(steps, np.full(len(steps), row), "k|", markersize=9)
            label = seconds(effect.seconds)
            label += "" if effect.ratio is None else f", {effect.ratio.ratio:.2f}×"
            axes.annotate(label, (max(steps), row), (6, 0), textcoords="offset points", va="center")
        names = [f"{name}, rounds" if _rounds(e) else name for name, e in effects.ways.items()]
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(visible=False)
        longest = max(max(steps) for effect in effects.ways.values() for steps in effect.rounds)
        axes.set_xlim(0, 1400 * longest)

    return one_panel(
        _step_times_title(effects),
        rows,
        draw,
        (7.0, 1.3 + 0.45 * len(effects.ways)),
        xlabel="ms; a mark for each step; hatched: the wire format rounds",
    )


def parity_rows(effects: Effects) -> Rows:
    """Return a table of what each technique sends, and how far its gradients are off.

    The error of a gradient is its distance from the mean in float64.
    """
    header = [f"technique ({EMULATED})", "sent by a host in a step"]
    rows = [[*header, "error of the gradient", "limit", "parity"]]
    for name, effect in effects.ways.items():
        error, limit = (
            "–" if value is None else f"{value:.1g}"
            for value in (effect.gradient_error, None if name == ALONE else effect.limit)
        )
        sent = effect.sent_bytes
        counted = "not counted" if sent is None else f"{sent / _MEBI:.2f} MiB"
        rows.append([name, counted, error, limit, effect.parity])
    return rows


def learned_rows(scores: Scores) -> Rows:
    """Return a table of each wire format's accuracy, with the noise of means over the seeds."""
    header = ["wire format", "held-out accuracy", "of each seed"]
    return [
        [*header, f"less {FP32}", "noise", "verdict"],
        *(
            [
                name,
                f"{statistics.mean(values):.3f}",
                ", ".join(f"{value:.3f}" for value in values),
                *(f"{scores.difference(name):+.3f}", f"± {scores.noise:.3f}"),
                scores.verdict(name),
            ]
            for name, values in scores.by_format.items()
        ),
    ]

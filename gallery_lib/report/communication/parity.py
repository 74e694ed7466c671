"""Table of what each technique sends, and whether its gradients are right."""

from __future__ import annotations

from gallery_lib.console.table import Rows
from gallery_lib.measure.communication.strategies import ALONE, Effects
from gallery_lib.report.communication import EMULATED
from gallery_lib.report.sentences import listed

_MEBI = 2**20


def parity_rows(effects: Effects) -> Rows:
    """Return a table of what each technique sends, and how far its gradients are off.

    The error of a gradient is its distance from the mean in float64.
    """
    rows = [
        [
            f"technique ({EMULATED})",
            "sent by a host in a step, computed",
            "counted by its network card",
            "error of the gradient",
            "limit",
            "parity",
        ]
    ]
    for name, effect in effects.ways.items():
        counted = (
            "not counted" if effect.sent_bytes is None else f"{effect.sent_bytes / _MEBI:.2f} MiB"
        )
        error, limit = (
            ("–" if value is None else f"{value:.1g}")
            for value in (effect.gradient_error, effect.limit)
        )
        rows.append(
            [
                name,
                f"{effect.computed_bytes / _MEBI:.2f} MiB",
                counted,
                error,
                limit if name != ALONE else "–",
                effect.parity,
            ]
        )
    return rows


def wrong_techniques(effects: Effects) -> list[str]:
    """Return the techniques whose gradients are wrong, by name."""
    return [name for name, effect in effects.ways.items() if effect.parity.startswith("FAILED")]


def parity_advice(effects: Effects) -> str:
    """Return which techniques to trust, by their gradients, and what the bytes are good for."""
    wrong = wrong_techniques(effects)
    averaged = {name: e for name, e in effects.ways.items() if name != ALONE}
    without_limit = [name for name, e in averaged.items() if name not in wrong and e.limit is None]
    right = [name for name in averaged if name not in (*wrong, *without_limit)]
    text = ""
    if wrong:
        text = f"Do not use {listed(wrong, last='or')}: the gradients are wrong. "
    if right:
        text += f"Trust the step times of {listed(right)}: the gradients are right. "
    if without_limit:
        text += (
            f"Judge {listed(without_limit)} by what it learns, below: a single step says little "
            "about it. "
        )
    differences = [
        abs(e.sent_bytes - e.computed_bytes) for e in averaged.values() if e.sent_bytes is not None
    ]
    if not differences:
        return f"{text}No network card was asked, so the bytes are computed alone."
    return (
        f"{text}Plan with the computed bytes: what the network card counted differs by at most "
        f"{max(differences) / _MEBI:.2f} MiB, which TCP adds."
    )

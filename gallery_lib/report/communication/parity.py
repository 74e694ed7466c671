"""Table of what each technique sends, and whether its gradients are right."""

from __future__ import annotations

from gallery_lib.console.table import Rows
from gallery_lib.measure.communication.strategies import ALONE, Effects
from gallery_lib.report.communication import EMULATED

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

"""A trial of a script, as `gallery try` makes it."""

from __future__ import annotations

from typing import Any

from gallery_lib.stats import Ratio
from gallery_lib.trial.result import Form, Parity, Share, Trial


def a_trial(**changed: Any) -> Trial:
    """Return a trial of a script with one model, AdamW and ten rounds of steps of 10 ms."""
    form = Form(0.01, [[0.01] * 5] * 10, [Share("backward pass", 0.01)], 0.0, [])
    values: dict[str, Any] = {
        **{"command": "train.py", "script": "train.py", "cycle": 1, "seconds": 9.0},
        "environment": {
            **{"cpu": "one", "cores": 2, "device": "cpu", "isa": [], "memory_bytes": 2**30},
            **{"python": "3", "torch": "2.15"},
        },
        "models": [{"name": "Net", "weights": 1, "compiled": False, "device": "cpu"}],
        "optimizers": [{"name": "AdamW", "torchs": True, "fused": False, "weights": 1}],
        **{"processes": 1, "threads": 2, "parity": Parity(True, "same"), "techniques": {}},
        **{"ratio": Ratio(1.5, 1.4, 1.6), "pace": [0.1] * 10, "limit_share": 0.4},
        **{"plain": form, "accelerated": form, "left_out": {}, "findings": [], "notes": []},
        "change": None,
    }
    return Trial(**{**values, **changed})

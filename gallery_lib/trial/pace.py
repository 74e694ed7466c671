"""The machine's pace during a trial, and what it tells: limits, and a trial beside an earlier one.

A matrix product and a copy are timed in the scripts' pauses. At their best they are the limits that
a pass through the script's models is held against. Round by round they tell how fast the machine
was. `change(before, now)` holds two trials against them, so that a machine that others use is no
slower script; what it compares is the plain form, the script as its reader types it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gallery_lib.errors import InputError
from gallery_lib.measure.comparison import pair
from gallery_lib.measure.roofline import best_seconds, prepared_copy, prepared_product
from gallery_lib.stats import Ratio, change_of_ratio, ratio_of_medians
from gallery_lib.system.files import read_json
from gallery_lib.trial.result import SCHEMA, Form, Trial

_REPEATS = 3


class Pace:
    """Products and copies of this process, with as many threads as the script has."""

    def __init__(self, threads: int, dtypes: Sequence[str]) -> None:
        torch.set_num_threads(threads)
        self._products = {
            name: prepared_product(getattr(torch, name)) for name in ("float32", *dtypes)
        }
        self._copy = prepared_copy()
        self._best = dict.fromkeys([*self._products, "copy"], math.inf)
        self.rounds: list[float] = []
        """Geometric mean of a product's and a copy's seconds, by round."""

    def take(self) -> None:
        """Time products and copy once more, and add the pace of this round to `rounds`."""
        now = {
            name: best_seconds(body, _REPEATS)
            for name, (body, _) in {**self._products, "copy": self._copy}.items()
        }
        for name, took in now.items():
            self._best[name] = min(self._best[name], took)
        self.rounds.append(statistics.geometric_mean([now["float32"], now["copy"]]))

    def seconds_of(self, work: Sequence[Mapping[str, float | str | None]]) -> float | None:
        """Return the least seconds of operators at these limits; None where a type has none.

        Each operator takes its FLOPs or its bytes, whichever takes longer (measure/roofline.py).
        """
        total = 0.0
        copies = self._copy[1] / self._best["copy"]
        for one in work:
            by_products = 0.0
            if one["flops"]:
                if one["dtype"] not in self._products:
                    return None
                flops = self._products[str(one["dtype"])][1]
                by_products = float(one["flops"] or 0) / (flops / self._best[str(one["dtype"])])
            total += max(by_products, float(one["bytes"] or 0) / copies)
        return total


# --------------------------------------------------------------------------------------------------
# A trial beside an earlier one


_DRIFT = 0.03
"""Relative standard deviation of a script's step over its machine's pace, at different times.

An allowance: it has not been measured.
"""
_SAME = ("script", "cpu", "cores", "device", "isa", "torch", "processes", "threads")


def read(path: Path) -> Trial:
    """Return the trial that `--json` has written.

    Raises:
        InputError: there is none, or one without times.
    """
    try:
        trial = read_json(path, Trial, again="Repeat the trial with --json.", schema=SCHEMA)
    except FileNotFoundError:
        raise InputError(f"against={path}: there is no such file.", parameter="against") from None
    if trial.plain is None or len(trial.plain.rounds) < 2:
        raise InputError(
            f"against={path}: that trial has too few times to compare.", parameter="against"
        )
    return trial


def difference(before: Trial, now: Trial) -> str | None:
    """Return why two trials cannot be compared, or None."""
    for name in _SAME:
        then, today = (_conditions(trial).get(name) for trial in (before, now))
        if then != today:
            return f"{name} was {then} then, and is {today} now"
    return None


def _conditions(trial: Trial) -> dict[str, Any]:
    own = {"script": trial.script, "processes": trial.processes, "threads": trial.threads}
    return {**trial.environment, **own}


def change(before: Trial, now: Trial) -> Ratio:
    """Return the plain form's seconds then over those of now, at the pace of their machine.

    Raises:
        ValueError: one of the trials has no times.
    """
    return change_of_ratio(_over_pace(now), _over_pace(before))


def _over_pace(trial: Trial) -> Ratio:
    if trial.plain is None:
        raise ValueError("a trial without times")
    spread = math.hypot(_DRIFT, pair.spread_of(gives_memory_back(trial.plain)))
    pace = [[seconds] for seconds in trial.pace]
    return ratio_of_medians(trial.plain.rounds, pace, process_spread=spread)


def gives_memory_back(form: Form) -> bool:
    """Return whether page faults matter in the step of a form that gives its memory back."""
    faults = form.page_faults * pair.FAULT_SECONDS
    return faults > pair.NOTICEABLE_PART * form.cycle_seconds

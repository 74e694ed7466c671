"""Charts of training in a notebook's own kernel: its losses, and where the time of a step goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from gallery_lib.console.table import number
from gallery_lib.measure.profile.step_profile import OUTSIDE, StepProfile
from gallery_lib.report.chart import Chart, one_panel
from gallery_lib.report.style import COLOURS, LOOKS

_FELL = 0.99
"""Part of the first pass's loss that the second pass's must be below, for a loss that fell."""
_GROUPS_SHOWN = 10


def _passes(losses: Sequence[float]) -> tuple[float, float]:
    """Return the mean losses of the first and the second half of the steps: of the two passes."""
    half = len(losses) // 2
    return mean(losses[:half] or losses), mean(losses[half:])


def fell(losses: Sequence[float]) -> bool:
    """Return whether the loss of the second pass is finite and below that of the first.

    The passes are over the same batches, since losses of different ones differ by chance.
    """
    first, second = _passes(losses)
    return math.isfinite(second) and second < _FELL * first


def _losses_title(curves: Mapping[str, Sequence[float]]) -> str:
    failed = [name for name, losses in curves.items() if not fell(losses)]
    passes = zip(*map(_passes, curves.values()), strict=True)
    start, end = (" and ".join(dict.fromkeys(map(number, values))) for values in passes)
    change = f"from {start} to {end}"
    if not failed:
        which = "The loss" if len(curves) == 1 else "Both losses"
        return f"{which} fell in the second pass, {change}"
    if len(failed) == len(curves):
        return f"No loss fell in the second pass: {change}"
    return f"The loss of {failed[0]} did not fall in the second pass: {change}"


def losses(curves: Mapping[str, Sequence[float]]) -> Chart:
    """Return the loss of each step, a curve for each name; the title says whether they fell."""
    rows = [["step", *curves]]
    for step in range(max(map(len, curves.values()))):
        values = [number(c[step]) if step < len(c) else "" for c in curves.values()]
        rows.append([str(step + 1), *values])

    def draw(axes: Any) -> None:
        for (name, values), look in zip(curves.items(), LOOKS, strict=False):
            axes.plot(range(1, len(values) + 1), values, **look, marker=".", label=name)
        axes.legend()

    return one_panel(_losses_title(curves), rows, draw, xlabel="step", ylabel="loss")


def profile(profiles: Mapping[str, StepProfile]) -> Chart:
    """Return the milliseconds of a step by groups of operators, the largest groups first.

    The title has the two largest groups of one step; of two steps, what the second saves most.
    """
    most = {
        group: max(p.groups.get(group, 0.0) for p in profiles.values())
        for one in profiles.values()
        for group in one.groups
    }
    by_time = sorted(most, key=lambda group: -most[group])
    groups = by_time[:_GROUPS_SHOWN]
    rows = [["group of operators", *(f"{name}, ms (share)" for name in profiles)]]
    rows += [[group, *(_cell(p, group) for p in profiles.values())] for group in groups]
    if rest := by_time[_GROUPS_SHOWN:]:
        sums = (sum(p.groups.get(name, 0.0) for name in rest) for p in profiles.values())
        rows.append(["everything else", *(number(1000 * seconds) for seconds in sums)])
    rows.append(["step", *(number(1000 * p.seconds) for p in profiles.values())])

    def draw(axes: Any) -> None:
        height = 0.8 / len(profiles)
        for place, ((name, one), colour) in enumerate(zip(profiles.items(), COLOURS, strict=False)):
            axes.barh(
                [y + (place - (len(profiles) - 1) / 2) * height for y in range(len(groups))],
                [1000 * one.groups.get(group, 0.0) for group in groups],
                height=height,
                color=colour,
                label=f"{name}: {_milliseconds(one.seconds)}",
            )
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(groups)), groups)
        axes.set_ylim(len(groups) - 0.5, -0.5)  # the largest at the top
        axes.legend(loc="lower right")

    size = (8.0, 1.3 + 0.33 * len(groups))
    label = "milliseconds of a step, profiler included"
    return one_panel(_profile_title(profiles), rows, draw, size, xlabel=label)


def _profile_title(profiles: Mapping[str, StepProfile]) -> str:
    first, *others = profiles.values()
    if not others:
        one, two = [group for group in first.groups if group != OUTSIDE][:2]
        return f"{first.share(one):.0%} of a step is {one}, {first.share(two):.0%} {two}"
    before, after = first.groups, others[-1].groups
    saved = max(before, key=lambda group: before[group] - after.get(group, 0.0))
    old, *_, new = profiles
    return (
        f"{saved[0].upper()}{saved[1:]}: {_milliseconds(before[saved])} {old}, "
        f"{_milliseconds(after.get(saved, 0.0))} {new}"
    )


def _cell(one: StepProfile, group: str) -> str:
    return f"{number(1000 * one.groups.get(group, 0.0))} ({one.share(group):.0%})"


def _milliseconds(seconds: float) -> str:
    return f"{number(1000 * seconds)} ms"

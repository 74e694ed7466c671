"""Bars of where a training step's time goes, by groups of operators."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, number
from gallery_lib.measure.profile.operator_groups import OUTSIDE
from gallery_lib.measure.profile.step_profile import StepProfile
from gallery_lib.report.plots import COLOURS

Profiles = Mapping[str, StepProfile]
_SHOWN = 10


def _groups(profiles: Profiles) -> list[str]:
    """Return the groups that take most time in any of the steps, the largest first."""
    largest: dict[str, float] = {}
    for profile in profiles.values():
        for group, seconds in profile.groups.items():
            largest[group] = max(seconds, largest.get(group, 0.0))
    return sorted(largest, key=lambda group: -largest[group])[:_SHOWN]


def title(profiles: Profiles) -> str:
    """Return what the bars say, in a sentence.

    Of one step, its two largest groups; of two, what the second saves most.
    """
    first, *others = profiles.values()
    if not others:
        one, two = [group for group in first.groups if group != OUTSIDE][:2]
        return f"{first.share(one):.0%} of a step is {one}, {first.share(two):.0%} {two}"
    before, after = first.groups, others[-1].groups
    saved = max(before, key=lambda group: before[group] - after.get(group, 0.0))
    names = list(profiles)
    return (
        f"{saved[0].upper()}{saved[1:]}: {_milliseconds(before[saved])} {names[0]}, "
        f"{_milliseconds(after.get(saved, 0.0))} {names[-1]}"
    )


def _milliseconds(seconds: float) -> str:
    return f"{number(1000 * seconds)} ms"


def figure(profiles: Profiles) -> Figure:
    """Return horizontal bars, a group each, in milliseconds of a step."""
    groups = _groups(profiles)
    plot = Figure(figsize=(8.0, 1.3 + 0.33 * len(groups)), layout="constrained")
    axes = plot.subplots()
    height = 0.8 / len(profiles)
    for place, ((name, profile), colour) in enumerate(zip(profiles.items(), COLOURS, strict=False)):
        axes.barh(
            [y + (place - (len(profiles) - 1) / 2) * height for y in range(len(groups))],
            [1000 * profile.groups.get(group, 0.0) for group in groups],
            height=height,
            color=colour,
            label=f"{name}: {_milliseconds(profile.seconds)}",
        )
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)  # the largest at the top
    axes.set(title=title(profiles), xlabel="milliseconds of a step, profiler included")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower right")
    return plot


def text(profiles: Profiles) -> str:
    """Return the alternative text of `figure`."""
    wholes = ", ".join(f"{_milliseconds(p.seconds)} {name}" for name, p in profiles.items())
    return (
        f"Bars of a step's time by groups of operators. A step takes {wholes}. {title(profiles)}."
    )


def rows(profiles: Profiles) -> Rows:
    """Return the table of `figure`, with all groups that it shows and the rest."""
    groups = _groups(profiles)
    table = [["group of operators", *(f"{name}, ms (share)" for name in profiles)]]
    for group in groups:
        table.append(
            [
                group,
                *(
                    f"{number(1000 * p.groups.get(group, 0.0))} ({p.share(group):.0%})"
                    for p in profiles.values()
                ),
            ]
        )
    rest = [
        p.seconds - sum(p.groups.get(group, 0.0) for group in groups) for p in profiles.values()
    ]
    if any(seconds > 0 for seconds in rest):
        table.append(["everything else", *(number(1000 * max(0.0, s)) for s in rest)])
    return [*table, ["step", *(number(1000 * p.seconds) for p in profiles.values())]]

"""Plot of step times by technique, with the speed-up of each over DDP's own averaging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, seconds
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effect, Effects
from gallery_lib.report.communication import EMULATED, GREY
from gallery_lib.report.communication.parity import wrong_techniques
from gallery_lib.report.plots import COLOURS
from gallery_lib.report.sentences import listed, sentence
from gallery_lib.stats import Ratio


def _speedup(effect: Effect) -> str:
    if effect.ratio is None:
        return "1, by definition"
    return str(effect.ratio)


def _rounds(effect: Effect) -> bool:
    """Return whether the technique rounds gradients, and so changes what is computed."""
    return bool(effect.options["wire"] != "exact")


def _faster(effects: Effects, *, rounded: bool) -> dict[str, Ratio]:
    """Return the techniques that are certainly faster than DDP's own, the fastest first.

    The gradients of each are right. They are those that round, or those that do not.
    """
    ratios = {
        name: effect.ratio
        for name, effect in effects.ways.items()
        if name not in (PLAIN, ALONE, *wrong_techniques(effects))
        and _rounds(effect) == rounded
        and effect.ratio is not None
        and effect.ratio.verdict == "faster"
    }
    return dict(sorted(ratios.items(), key=lambda item: -item[1].ratio))


def _limit(effects: Effects) -> Ratio | None:
    """Return how many times as fast a step is without any network; None where it is no faster."""
    alone = effects.ways.get(ALONE)
    ratio = alone.ratio if alone else None
    return ratio if ratio is not None and ratio.verdict == "faster" else None


def waterfall_title(effects: Effects) -> str:
    """Return what the bars say: the network's part of DDP's step, and which technique gains."""
    limit = _limit(effects)
    part = (
        f"The network takes {1 - 1 / limit.ratio:.0%} of DDP's step"
        if limit
        else "The network takes no measurable part of DDP's step"
    )
    exact, rounded = (_faster(effects, rounded=rounded) for rounded in (False, True))
    gains = [f"{name} gains {ratio.ratio:.2f}×" for name, ratio in _firsts(exact, rounded)]
    conditions = f"{effects.hosts}, {EMULATED}"
    return f"{part}; {listed(gains) or 'no technique gains'}\n{conditions}"


def _firsts(*groups: dict[str, Ratio]) -> Sequence[tuple[str, Ratio]]:
    return [next(iter(group.items())) for group in groups if group]


def waterfall(effects: Effects) -> Figure:
    """Return a figure of each technique's step time: a mark for each step, a bar for the median."""
    figure = Figure(figsize=(7.0, 1.3 + 0.45 * len(effects.ways)), layout="constrained")
    axes = figure.subplots()
    for row, (name, effect) in enumerate(effects.ways.items()):
        colour = GREY if name == ALONE else COLOURS[1] if _rounds(effect) else COLOURS[0]
        axes.barh(
            row,
            1000 * effect.seconds,
            color=colour,
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
    longest = max(max(steps) for effect in effects.ways.values() for steps in effect.rounds)
    axes.set_xlim(0, 1400 * longest)
    axes.set(
        title=waterfall_title(effects),
        xlabel="ms; a mark for each step; hatched: the wire format rounds",
    )
    return figure


def waterfall_text(effects: Effects) -> str:
    """Return the alternative text of `waterfall`."""
    parts = [
        f"{name} {seconds(e.seconds)}" + (f", {_speedup(e)} {PLAIN}" if e.ratio else "")
        for name, e in effects.ways.items()
    ]
    return (
        f"Bar chart of step times on {effects.hosts} with an {EMULATED}: {'; '.join(parts)}. "
        f"{sentence(waterfall_title(effects))}"
    )


def waterfall_rows(effects: Effects) -> Rows:
    """Return the table of `waterfall`."""
    rows = [
        [
            f"technique ({EMULATED})",
            "step time, median",
            f"{PLAIN} over it ({effects.confidence:.0%} interval)",
            "verdict",
        ]
    ]
    return rows + [
        [name, seconds(e.seconds), _speedup(e), e.ratio.verdict if e.ratio else "baseline"]
        for name, e in effects.ways.items()
    ]


def effects_advice(effects: Effects) -> str:
    """Return which technique to use, of those that do not round and of those that do.

    Only techniques count that are certainly faster than DDP's own, with gradients that are right.
    """
    exact, rounded = (_faster(effects, rounded=rounded) for rounded in (False, True))
    if exact:
        text = f"{_use(exact, 'Use')} Only the order of additions changes."
    else:
        text = (
            "No technique that leaves the values as they are is certainly faster: if you accept no "
            "rounding, keep DDP as it is."
        )
    if rounded:
        text += f" {_use(rounded, 'If you accept rounding, use')} Look first at what it learns."
    else:
        text += " No technique that rounds is certainly faster either: do not round for nothing."
    if limit := _limit(effects):
        return f"{text} More than {limit} is not to be had: that is a step without any network."
    return f"{text} The network is not the limit here, so look for time elsewhere."


def _use(ratios: dict[str, Ratio], beginning: str) -> str:
    """Return which of these techniques to use, and which may be as fast."""
    (best, ratio), *others = ratios.items()
    text = f"{beginning} {best}: {ratio} as fast as {PLAIN}."
    close = [name for name, other in others if other.high >= ratio.low]
    if close:
        text += f" By these measurements, {listed(close, last='or')} may be as fast."
    return text

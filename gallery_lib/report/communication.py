"""Charts of communication: bytes sent, step times, buckets over time, and what was learned.

A title says what came out. One from a lab of hosts says that the links are emulated.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, seconds
from gallery_lib.measure.communication.convergence import FP32, Scores
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effect, Effects, Timeline
from gallery_lib.report import style
from gallery_lib.report.style import OURS, Chart, fitted, listed, one_panel

EMULATED = "emulated link"
"""What titles and tables call the links of a lab."""
_MEBI = 2**20
_SPREAD = 0.36
"""Width over which the marks of one format lie side by side."""


def bytes_sent(model: str, hosts: int, bits_per_second: int, sent: Mapping[str, float]) -> Chart:
    """Return what a host sends in a step, computed, with a bar for each format.

    Args:
        model: title of the model.
        hosts: number of hosts.
        bits_per_second: rate of a host's link.
        sent: bytes by wire format; the first format does not round.
    """
    exact = next(iter(sent))
    rate = f"{bits_per_second / 1e6:g} Mbit/s"
    share = {wire: f"{size / sent[exact]:.1%}" for wire, size in sent.items()}
    rows = [["wire format", "sent by each host in a step", "of fp32", f"busy link at {rate}"]]
    rows += [
        [wire, _mebibytes(size), share[wire], seconds(8 * size / bits_per_second)]
        for wire, size in sent.items()
    ]
    smallest = min(sent, key=lambda wire: sent[wire])
    less = f"{share[smallest]} of that in {smallest}"
    if smallest == exact:
        less = "and no format sends less"
    title = (
        f"{model}: each of {hosts} hosts sends {_mebibytes(sent[exact])} a step in {exact}, {less}"
    )

    def draw(axes: Any) -> None:
        values = [size / _MEBI for size in sent.values()]
        bars = axes.barh(list(sent), values, color=[style.PLAIN, *[OURS] * (len(values) - 1)])
        axes.bar_label(bars, [f"{row[1]}, {row[2]}" for row in rows[1:]], padding=3)
        axes.grid(visible=False)
        axes.invert_yaxis()
        axes.margins(x=0.3)

    size = (7.0, 1.1 + 0.45 * len(sent))
    return one_panel(title, rows, draw, size, xlabel="MiB, computed")


def _mebibytes(size: float) -> str:
    return f"{size / _MEBI:.3g} MiB"


def _rounds(effect: Effect) -> bool:
    """Return whether the technique rounds gradients, and so changes what is computed."""
    return bool(effect.options["wire"] != "exact")


def _step_times_title(effects: Effects) -> str:
    """Return the network's part of DDP's step, and the best technique with and without rounding.

    A technique counts that is certainly faster than DDP's own, with gradients that are right.
    """
    limit = effects.ways[ALONE].ratio if ALONE in effects.ways else None
    part = "no measurable part"
    if limit and limit.verdict == "faster":
        part = f"{1 - 1 / limit.ratio:.0%}"
    gains: dict[bool, list[tuple[float, str]]] = {False: [], True: []}
    for name, effect in effects.ways.items():
        right = name not in (PLAIN, ALONE) and not effect.parity.startswith("FAILED")
        if right and effect.ratio and effect.ratio.verdict == "faster":
            gains[_rounds(effect)].append((effect.ratio.ratio, name))
    best = [max(group) for group in gains.values() if group]
    gained = listed(f"{name} gains {ratio:.2f}×" for ratio, name in best)
    return (
        f"The network takes {part} of DDP's step; {gained or 'no technique gains'}\n"
        f"{effects.hosts}, {EMULATED}"
    )


def step_times(effects: Effects) -> Chart:
    """Return each technique's step time: a mark for each step, a bar for the median."""
    interval = f"{effects.confidence:.0%} interval"
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
    header = [f"technique ({EMULATED})", "sent by a host in a step, computed"]
    header += ["counted by its network card", "error of the gradient", "limit", "parity"]
    rows = [header]
    for name, effect in effects.ways.items():
        computed, sent = effect.computed_bytes, effect.sent_bytes
        error, limit = (
            "–" if value is None else f"{value:.1g}"
            for value in (effect.gradient_error, None if name == ALONE else effect.limit)
        )
        counted = "not counted" if sent is None else f"{sent / _MEBI:.2f} MiB"
        rows.append([name, f"{computed / _MEBI:.2f} MiB", counted, error, limit, effect.parity])
    return rows


def _last_ready(line: Timeline) -> float:
    """Return when the backward pass has computed its last gradient."""
    return max(ready for _, ready, _ in line.buckets)


def _last_averaged(line: Timeline) -> float:
    return max(arrived for _, _, arrived in line.buckets)


def buckets(effects: Effects) -> Chart:
    """Return one step of each technique over time.

    The forward and backward pass are grey. A bar per bucket runs from the moment when the bucket is
    ready to the arrival of its mean, and has the bucket's size beside it.
    """
    lines = {name: e.timeline for name, e in effects.ways.items() if e.timeline is not None}
    waits = {name: _last_averaged(line) - _last_ready(line) for name, line in lines.items()}
    header = [f"technique ({EMULATED})", "buckets", "MiB in them", "first ready after"]
    rows = [[*header, "last ready after", "last averaged after", "waits for it"]]
    for name, line in lines.items():
        sizes, ready, _ = zip(*line.buckets, strict=True)
        moments = [min(ready), max(ready), _last_averaged(line), waits[name]]
        shown = ", ".join(f"{size:.2g}" for size in sizes)
        rows.append([name, str(len(sizes)), shown, *map(seconds, moments)])
    least = min(waits, key=lambda name: waits[name])
    other = "no technique less" if least == PLAIN else f"{least} {seconds(waits[least])}"
    title = (
        f"{PLAIN} waits {seconds(waits[PLAIN])} for its last bucket, {other}\n"
        f"one step of each, {EMULATED}"
    )

    def draw() -> Figure:
        heights = [max(3, len(line.buckets)) for line in lines.values()]
        figure = Figure(figsize=(8.0, 0.2 * sum(heights) + 1.3), layout="constrained")
        panels = np.atleast_1d(figure.subplots(len(lines), sharex=True, height_ratios=heights))
        for axes, (name, line) in zip(panels, lines.items(), strict=True):
            _draw_buckets(axes, name, line)
        panels[0].set_title(fitted(title), fontsize="medium")
        panels[0].set_xlim(0, 1100 * max(map(_last_averaged, lines.values())))
        figure.supxlabel(
            "ms since the step began; grey: forward pass; light: backward pass, until the last "
            "bucket is ready",
            fontsize="medium",
        )
        return figure

    return Chart(title, rows, draw)


def _draw_buckets(axes: Any, name: str, line: Timeline) -> None:
    """Draw one technique's step: its passes, and a bar for each bucket with its size."""
    forward, last = 1000 * line.forward, 1000 * _last_ready(line)
    axes.axvspan(0, forward, color=style.PLAIN, alpha=0.35, linewidth=0)
    axes.axvspan(forward, last, color=style.PLAIN, alpha=0.15, linewidth=0)
    for row, (size, ready, arrived) in enumerate(line.buckets):
        axes.barh(
            row,
            1000 * (arrived - ready),
            left=1000 * ready,
            color=style.PLAIN if name == PLAIN else OURS,
            alpha=(1.0, 0.8)[row % 2],
            edgecolor="white",
        )
        axes.annotate(
            f"{size:.2g} MiB",
            (1000 * arrived, row),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize="x-small",
        )
    axes.set_ylim(len(line.buckets) - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_ylabel(name, rotation=0, ha="right", va="center")


def learned(trainings: Sequence[Scores]) -> Chart:
    """Return each seed's score by wire format, with the noise around fp32's mean."""
    rows = [["training", "wire format", "mean", "seeds", f"less {FP32}", "noise", "verdict"]]
    for scores in trainings:
        for name, values in scores.by_format.items():
            mean, each = statistics.mean(values), ", ".join(f"{v:.3f}" for v in values)
            difference, noise = f"{scores.difference(name):+.3f}", f"± {scores.noise:.3f}"
            quantity = f"{scores.quantity} {mean:.3f}"
            rows.append(
                [scores.title, name, quantity, each, difference, noise, scores.verdict(name)]
            )

    def draw() -> Figure:
        count = len(trainings)
        figure = Figure(figsize=(8.0, 2.9 * count), layout="constrained")
        for axes, scores in zip(np.atleast_1d(figure.subplots(count)), trainings, strict=True):
            _draw_scores(axes, scores)
        figure.supxlabel(
            f"a mark for each seed; grey: the noise around the mean of {FP32}", fontsize="medium"
        )
        return figure

    return Chart("\n".join(map(_learned_title, trainings)), rows, draw)


def _learned_title(scores: Scores) -> str:
    """Return which formats learn less than fp32, without commas inside a name."""
    worse = [name for name in scores.by_format if scores.verdict(name) == "worse"]
    if not worse:
        return f"{scores.title}: every format learns what {FP32} learns"
    if len(worse) == len(scores.by_format) - 1:
        return f"{scores.title}: every other format learns less than {FP32}"
    verb = "learns" if len(worse) == 1 else "learn"
    names = listed(name.replace(", no ", " without ") for name in worse)
    return f"{scores.title}: only {names} {verb} less than {FP32}"


def _draw_scores(axes: Any, scores: Scores) -> None:
    centre = statistics.mean(scores.by_format[FP32])
    low, high = centre - scores.noise, centre + scores.noise
    axes.axhspan(low, high, color=style.PLAIN, alpha=0.3, linewidth=0)
    names = []
    for place, (name, values) in enumerate(scores.by_format.items()):
        names.append(name.replace(", ", ",\n") + f"\nmean {statistics.mean(values):.3f}")
        colour = style.PLAIN if name == FP32 else OURS
        spread = np.linspace(-_SPREAD / 2, _SPREAD / 2, len(values))
        axes.plot(place + spread, values, "o", color=colour)
    axes.set_xticks(range(len(names)), names)
    axes.margins(x=0.08, y=0.15)
    axes.set_title(fitted(_learned_title(scores)), fontsize="medium")
    axes.set_ylabel(scores.quantity)
    axes.grid(alpha=0.3)

"""Bars of scripts that took turns: how many times as fast as the baseline each of them is."""

from __future__ import annotations

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, rate
from gallery_lib.measure.comparison.script_turns import ScriptTurns
from gallery_lib.report.plots import COLOURS
from gallery_lib.stats import Ratio


def _ratios(turns: ScriptTurns) -> dict[str, Ratio | None]:
    return {name: turns.ratio(name) for name in turns.candidates}


def _result(name: str, ratio: Ratio | None, baseline: str) -> str:
    if ratio is None:
        return f"{name} does not train like {baseline}, so there is no ratio"
    if ratio.verdict == "no measurable difference":
        return f"No measurable difference between {name} and {baseline}"
    return f"{name} is {ratio.ratio:.2f}× as fast as {baseline}"


def title(turns: ScriptTurns) -> str:
    """Return what came out: `accelerated is 1.31× as fast as native`.

    It is about the first candidate, and about the fastest one if that is another. On a busy machine
    a script with fewer threads seems faster than it is, so the title names the fastest one only on
    a quiet machine.
    """
    ratios = _ratios(turns)
    first = turns.candidates[0]
    text = _result(first, ratios[first], turns.baseline)
    if turns.load.reasons():
        return f"{text}\n(the machine was busy: measure again)"
    faster = {
        name: ratio.ratio
        for name, ratio in ratios.items()
        if ratio is not None and ratio.verdict == "faster"
    }
    best = max(faster, key=lambda name: faster[name], default=first)
    return text if best == first else f"{text}\nfastest is {best}: {faster[best]:.2f}×"


def figure(turns: ScriptTurns) -> Figure:
    """Return a bar for each script, with the interval of its ratio."""
    ratios = _ratios(turns)
    names = [turns.baseline, *ratios]
    plot = Figure(figsize=(8.0, 1.3 + 0.36 * len(names)), layout="constrained")
    axes = plot.subplots()
    axes.barh(0, 1.0, height=0.6, color=COLOURS[3])
    for y, ratio in enumerate(ratios.values(), 1):
        if ratio is None:
            axes.text(0.02, y, "not comparable", va="center", fontsize="small", color="dimgray")
            continue
        axes.barh(y, ratio.ratio, height=0.6, color=COLOURS[0])
        bounds = [[ratio.ratio - ratio.low], [ratio.high - ratio.ratio]]
        axes.errorbar(ratio.ratio, y, xerr=bounds, color="black", linewidth=0.8, capsize=2)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the baseline at the top
    axes.set(title=title(turns), xlabel=f"times as fast as {turns.baseline}, with intervals")
    axes.grid(axis="x", alpha=0.3)
    return plot


def text(turns: ScriptTurns) -> str:
    """Return the alternative text of `figure`."""
    bars = ", ".join(f"{name} {ratio or 'not compared'}" for name, ratio in _ratios(turns).items())
    result = title(turns).replace("\n(", " (").replace("\n", "; ")
    return f"Bars with intervals, times as fast as {turns.baseline}: {bars}. {result}."


def rows(turns: ScriptTurns) -> Rows:
    """Return the table of `figure`, with the first loss of each script and what it must be."""
    table = [
        [
            "script",
            "throughput",
            f"times as fast as {turns.baseline}",
            "first loss",
            "same training",
            "precision and batches",
        ]
    ]
    for name, script in turns.scripts.items():
        ratio = turns.ratio(name)
        table.append(
            [
                name,
                rate(turns.samples_per_second(name)),
                "1" if name == turns.baseline else str(ratio) if ratio else "no ratio",
                f"{turns.first_losses[name]:.4f}",
                "" if name == turns.baseline else _parity(turns, name),
                script.conditions,
            ]
        )
    return table


def _parity(turns: ScriptTurns, name: str) -> str:
    """Return whether a script trains like the one with the same batches."""
    script, difference, reason = turns.scripts[name], turns.difference(name), turns.reason(name)
    if reason is not None:
        return f"NO: {reason}"
    if difference is None:
        return "not checked: no other script has its batches"
    return (
        f"first loss {difference:.2%} from {script.starts_like}'s; at most {script.tolerance:.1%}"
    )


def notes(turns: ScriptTurns) -> list[str]:
    """Return how the table was measured, a sentence each, and what disturbed the measurement."""
    counted = len(turns.rounds[turns.baseline][0])
    lines = [
        f"Rounds: {turns.round_count}, with {counted} counted line(s) of the log in each turn. "
        "A ratio is the median over rounds, with its 99 % interval.",
        "The interval allows for what processes of the same code differ by.",
    ]
    if reasons := turns.load.reasons():
        lines.append(f"**The machine was busy**: {'; '.join(reasons)}.")
    return lines

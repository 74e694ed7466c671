"""Chart of scripts that took turns: how many times as fast as the baseline each of them is."""

from __future__ import annotations

from gallery_lib.console.table import Rows, rate
from gallery_lib.measure.comparison.script_turns import ScriptTurns
from gallery_lib.report import style
from gallery_lib.report.chart import Chart
from gallery_lib.stats import Ratio

_BUSY = "The machine was busy, so no speed is drawn: measure again when it is quiet"


def chart(turns: ScriptTurns) -> Chart:
    """Return a bar for each script, with the interval of its ratio, the fastest first.

    On a busy machine a script with fewer threads seems faster than it is, so no ratio is drawn.
    """
    ratios, busy = {name: turns.ratio(name) for name in turns.candidates}, turns.load.reasons()
    bars = [
        style.Bar(name, None if busy else ratio, "not judged" if ratio else "not comparable")
        for name, ratio in sorted(ratios.items(), key=lambda one: -one[1].ratio if one[1] else 0.0)
    ]
    title, baseline = _BUSY if busy else _title(turns, ratios), turns.baseline
    return Chart(
        title,
        _rows(turns),
        lambda: style.ratio_bars(bars, title, baseline, plain=baseline)[0],
    )


def _title(turns: ScriptTurns, ratios: dict[str, Ratio | None]) -> str:
    """Return what came out of the first candidate, and of the fastest one if that is another."""
    first = turns.candidates[0]
    text = _result(first, ratios[first], turns.baseline)
    faster = {name: r.ratio for name, r in ratios.items() if r and r.verdict == "faster"}
    best = max(faster, key=lambda name: faster[name], default=first)
    return text if best == first else f"{text}\nfastest is {best}: {faster[best]:.2f}×"


def _result(name: str, ratio: Ratio | None, baseline: str) -> str:
    if ratio is None:
        return f"{name} does not train like {baseline}, so there is no ratio"
    if ratio.verdict == "no measurable difference":
        return f"No measurable difference between {name} and {baseline}"
    return f"{name} is {ratio.ratio:.2f}× as fast as {baseline}"


def _rows(turns: ScriptTurns) -> Rows:
    """Return the throughput and ratio of each script, its first loss, and what that must be."""
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
        ratio, is_baseline = turns.ratio(name), name == turns.baseline
        shown = f"{ratio or 'no ratio'}"
        if ratio and turns.load.reasons():
            shown += ", not judged: busy"
        table.append(
            [
                name,
                rate(turns.samples_per_second(name)),
                "1" if is_baseline else shown,
                f"{turns.first_losses[name]:.4f}",
                "" if is_baseline else _parity(turns, name),
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

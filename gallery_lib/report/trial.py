"""What `gallery try` prints: the verdict in one line, then what explains it."""

from __future__ import annotations

import statistics
from html import escape

from gallery_lib.console.text import duration, seconds, text_table
from gallery_lib.stats import Ratio
from gallery_lib.system import hardware
from gallery_lib.trial import pace
from gallery_lib.trial.result import Form, Trial

_LINES = """\
Lines to paste, before the first step:
    import gallery_lib.plug                                # optimizer, allocator, graph passes
    model = torch.compile(model, backend="gallery")        # behind the model's last change"""
_ONE_LINE = """\
Line to paste, before the first step:
    import gallery_lib.plug                                # optimizer, allocator, graph passes"""

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>gallery try: {title}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; }}
h1 {{ font-size: 1.4rem; }}
td, th {{ padding: .2rem 1rem .2rem 0; text-align: left; }}
pre {{ background: #f4f4f4; padding: 1rem; overflow-x: auto; }}
figure {{ margin: 1rem 0; }}
</style>
<body>
{body}
</body>
</html>
"""


def verdict(trial: Trial) -> str:
    """Return the verdict in a line: ratio with interval and parity, or why there is no ratio."""
    if not trial.parity.passed:
        return f"{trial.script}: no ratio, since {trial.parity.why}"
    if trial.ratio is None:
        return f"{trial.script}: no ratio, since the script was too short"
    return f"{trial.script}: {_ratio(trial.ratio)}, {trial.parity.why}"


def _ratio(ratio: Ratio) -> str:
    interval = f"(99 % interval {ratio.low:.2f} to {ratio.high:.2f})"
    if ratio.verdict == "faster":
        return f"{ratio.ratio:.2f}× as fast {interval}"
    if ratio.verdict == "slower":
        return f"slower, {ratio.ratio:.2f}× as fast {interval}"
    return f"no measurable difference, {ratio.ratio:.2f}× {interval}"


def text(trial: Trial) -> str:
    """Return the report for a terminal: verdict, table of a step, findings, lines to paste."""
    parts = [verdict(trial)]
    if trial.plain and trial.accelerated and trial.plain.shares:
        parts.append(text_table(_rows(trial.plain, trial.accelerated)))
    parts += _sentences(trial)
    if to_paste := _to_paste(trial):
        parts.append(to_paste)
    return "\n".join([*parts, _seen(trial)])


def page(trial: Trial, lead: str) -> str:
    """Return the report as an HTML page that needs no other file; `lead` is its first sentence."""
    body = [f"<h1>{escape(lead)}</h1>"]
    if lead != verdict(trial):
        body.append(f"<p>{escape(verdict(trial))}</p>")
    if trial.plain and trial.accelerated and trial.plain.shares:
        header, *rows = (map(escape, row) for row in _rows(trial.plain, trial.accelerated))
        lines = [f"<tr><th>{'<th>'.join(header)}", *(f"<tr><td>{'<td>'.join(r)}" for r in rows)]
        body.append(f"<table>{''.join(lines)}</table>")
        body.append(_drawing(trial.plain, trial.accelerated))
    body += [f"<p>{escape(sentence)}</p>" for sentence in _sentences(trial)]
    if to_paste := _to_paste(trial):
        body.append(f"<pre>{escape(to_paste)}</pre>")
    details = [_seen(trial), f"Command: {trial.command}"]
    body.append("<details><summary>Conditions</summary>")
    body += [*(f"<p>{escape(line)}</p>" for line in details), "</details>"]
    return _PAGE.format(title=escape(trial.script), body="\n".join(body))


def against(before: Trial, now: Trial, name: str) -> tuple[str, str]:
    """Return the verdict on a script's speed since an earlier trial, and the sentence for it."""
    if why := pace.difference(before, now):
        return "cannot tell", f"Against {name}: cannot tell, since {why}."
    if now.plain is None or len(now.pace) < 2:
        return "cannot tell", f"Against {name}: cannot tell, since there is no ratio now."
    ratio = pace.change(before, now)
    if ratio.verdict in ("faster", "slower"):
        return ratio.verdict, f"Against {name}: {_ratio(ratio)} as then."
    return "cannot tell", f"Against {name}: {_ratio(ratio)}, so it cannot tell."


def _sentences(trial: Trial) -> list[str]:
    """Return what is said of a trial beside its verdict, its table and the lines to paste."""
    parts = [f"{part}: {_ratio(ratio)} as without it" for part, ratio in trial.techniques.items()]
    if trial.ratio and trial.ratio.verdict == "slower" and not trial.techniques:
        parts.append(
            "--techniques shows which part costs time here, and --without=PART leaves it out."
        )
    if trial.plain and not trial.findings:
        parts.append("Nothing stands out that holds the script back.")
    parts += trial.findings
    if limits := _limits(trial):
        parts.append(limits)
    parts += trial.notes
    for form, marks in trial.left_out.items():
        if marks:
            named = ", ".join(f"{count} with {what}" for what, count in marks.items())
            parts.append(f"Steps that do not count, {form}: {named}.")
    if not trial.models:
        parts.append("No model was found that the script calls: none was compiled.")
    return parts


def _limits(trial: Trial) -> str | None:
    """Return how near the passes through the models are to the machine's limits."""
    if trial.limit_share is None:
        return None
    return (
        f"Forward and backward pass reach {trial.limit_share:.0%} of this machine's limits, by the "
        "operators' arithmetic and memory traffic."
    )


def _to_paste(trial: Trial) -> str | None:
    if trial.ratio is None or trial.ratio.verdict != "faster":
        return None
    if trial.change:
        return f"The change to {trial.script}:\n{trial.change.rstrip()}"
    to_compile = [model for model in trial.models if not model["compiled"]]
    return _LINES if to_compile else _ONE_LINE


def _seen(trial: Trial) -> str:
    names = ", ".join(f"{model['name']} ({model['weights']:,} weights)" for model in trial.models)
    steppers = ", ".join(one["name"] for one in trial.optimizers)
    step = "a step of an optimizer" if trial.cycle == 1 else f"{trial.cycle} steps of optimizers"
    return (
        f"Seen: {names}; {steppers}; a step is {step}. {hardware.describe(trial.environment)}. "
        f"The trial took {duration(trial.seconds)}."
    )


def _drawing(plain: Form, accelerated: Form) -> str:
    """Return the median step of each round as a drawing: grey is plain, blue accelerated."""
    medians = [[statistics.median(turn) for turn in one.rounds] for one in (plain, accelerated)]
    highest = max(map(max, medians))
    lines = []
    colours = "#8C8C8C", "#0072B2"  # style.PLAIN and OURS, whose module needs matplotlib
    for colour, own in zip(colours, medians, strict=True):
        places = [
            (8 + 584 * i / max(1, len(own) - 1), 130 - 120 * s / highest) for i, s in enumerate(own)
        ]
        points = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
        lines.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="3" points="{points}"/>'
        )
    label = f"Median step by round, from 0 to {seconds(highest)}: grey plain, blue accelerated"
    return (
        f'<figure><svg viewBox="0 0 600 132" role="img" aria-label="{label}">'
        f'<path d="M8 130H592" stroke="#ccc"/>{"".join(lines)}</svg>'
        f"<figcaption>{label}</figcaption></figure>"
    )


def _rows(plain: Form, accelerated: Form) -> list[list[str]]:
    """Return the rows of a step's parts, with their times in both forms."""
    rows = [["step", "plain", "accelerated"]]
    fast = {share.name: share.seconds for share in accelerated.shares}
    for share in plain.shares:
        other = seconds(fast[share.name]) if share.name in fast else ""
        rows.append([share.name, seconds(share.seconds), other])
    for name, value in fast.items():
        if name not in {share.name for share in plain.shares}:
            rows.append([name, "", seconds(value)])
    rows.append(["all of it", seconds(plain.cycle_seconds), seconds(accelerated.cycle_seconds)])
    return rows

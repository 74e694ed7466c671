"""What `gallery try` prints: the verdict in one line, then what explains it."""

from __future__ import annotations

from gallery_lib.console.text import duration, seconds, text_table
from gallery_lib.stats import Ratio
from gallery_lib.system import hardware
from gallery_lib.trial.result import Form, Trial

_LINES = """\
Lines to paste, before the first step:
    import gallery_lib.plug                                # optimizer, allocator, graph passes
    model = torch.compile(model, backend="gallery")        # behind the model's last change"""
_COMPILED = """\
Line to paste, before the first step; the script compiles its model already:
    import gallery_lib.plug                                # optimizer, allocator, graph passes"""


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
    for part, ratio in trial.techniques.items():
        parts.append(f"{part}: {_ratio(ratio)} as without it")
    if trial.plain and not trial.findings:
        parts.append("Nothing stands out that holds the script back.")
    parts += trial.findings
    parts += trial.notes
    for form, marks in trial.left_out.items():
        if marks:
            named = ", ".join(f"{count} with {what}" for what, count in marks.items())
            parts.append(f"Steps that do not count, {form}: {named}.")
    if not trial.models:
        parts.append("No model was found that the script calls: none was compiled.")
    if trial.ratio and trial.ratio.verdict == "faster":
        itself = all(model["compiled"] for model in trial.models)
        parts.append(_COMPILED if itself else _LINES)
    names = ", ".join(f"{model['name']} ({model['weights']:,} weights)" for model in trial.models)
    steppers = ", ".join(one["name"] for one in trial.optimizers)
    step = "a step of an optimizer" if trial.cycle == 1 else f"{trial.cycle} steps of optimizers"
    parts.append(
        f"Seen: {names}; {steppers}; a step is {step}. {hardware.describe(trial.environment)}. "
        f"The trial took {duration(trial.seconds)}."
    )
    return "\n".join(parts)


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

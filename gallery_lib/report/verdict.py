"""Sentences about a comparison: the verdict, and how to read it.

The verdict is one line, and the same in a terminal, in a notebook and in `gallery show`. Details
stand below it (tables.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gallery_lib.console.text import number, seconds
from gallery_lib.console.user_errors import short_name
from gallery_lib.system import hardware
from gallery_lib.system.gpu import CLOCKS_APART
from gallery_lib.train.results import Results, hidden_wait

if TYPE_CHECKING:
    from gallery_lib.measure.comparison.result import Comparison

BASELINE = "PyTorch eager"  # name of the variant `baseline` in texts


def precision(results: Results) -> str:
    """Return the precision of a run: `fp32`, or `bf16 autocast`."""
    if results.config["amp_level"] == "O0":
        return "fp32"
    amp_dtype = results.config.get("amp_dtype", "auto")
    dtype = "bf16" if amp_dtype == "auto" and results.environment["device"] == "cpu" else amp_dtype
    return "autocast" if dtype == "auto" else f"{dtype} autocast"


def batch(results: Results) -> str:
    """Return the size of a step's input: `batch size 16, 64×64 pixels`."""
    a_process = " a process" if results.world_size > 1 else ""
    size = f"batch size {results.config['batch_size']}{a_process}"
    return ", ".join(filter(None, [size, results.data.get("input")]))


def task_name(task: str) -> str:
    """Return a task's name.

    For a task in a file, this is the file's name and the object's. For a model from a cell of
    `your_model`, it is the name of the model's class.
    """
    path, _, name = task.rpartition(":")
    short = short_name(task)
    return f"{Path(path).name}:{name}" if path and short == name else short


def _compared_with(comparison: Comparison) -> str:
    """Return the baseline and its precision: `PyTorch eager in fp32`."""
    first = next(iter(comparison.variants))
    name = BASELINE if first == "baseline" else first
    before, after = precision(comparison.baseline), precision(comparison.candidate)
    return f"{name} in {before}" if before == after else f"{name} in {before}, itself in {after}"


def duration(seconds: float) -> str:
    """Return a duration such as `34 s`, `3.3 min` or `2.1 h`."""
    if seconds < 60:
        return f"{number(seconds)} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _break_even(comparison: Comparison) -> str:
    """Return a phrase on when the longer start-up has paid off.

    Returns '' where nothing can be said, for instance without a gain.
    """
    steps = comparison.break_even_steps
    if comparison.verdict != "faster" or steps is None:
        return ""
    if steps == 0:
        return "its start-up is no longer"
    time = duration(steps * comparison.candidate.step_seconds["p50"])
    return f"start-up paid for after {steps:,} step{'' if steps == 1 else 's'} ({time})"


def one_line(comparison: Comparison) -> str:
    """Return the verdict: model, speed-up with its interval, parity and break-even.

    If a parity check failed, the verdict names that check instead.
    """
    processes = comparison.baseline.world_size
    where = f" on {processes} processes" if processes > 1 else ""
    subject, other = f"{task_name(comparison.task)}{where}", _compared_with(comparison)
    ratio = comparison.speedup
    if ratio is None:
        return f"{subject}: {_why_no_speedup(comparison, other)}, so no speed-up is given."
    level = f"{100 * comparison.confidence:.4g} % interval"
    interval = f"{level} {ratio.low:.2f} to {ratio.high:.2f}"
    if comparison.verdict == "no measurable difference":
        speed = f"no measurable difference from {other} ({ratio.ratio:.2f}×, {interval})"
    else:
        slower = ", so slower" if comparison.verdict == "slower" else ""
        speed = f"{ratio.ratio:.2f}× as fast as {other} ({interval}){slower}"
    return (
        f"{subject}: "
        + ", ".join(filter(None, [speed, "same training (parity passed)", _break_even(comparison)]))
        + "."
    )


def _why_no_speedup(comparison: Comparison, other: str) -> str:
    """Return why there is no speed-up over `other`, with the checks that failed, or both clocks."""
    parity = comparison.parity
    if parity.passed:
        clocks = " and ".join(f"{run.gpu} for {name}" for name, run in comparison.variants.items())
        return f"{comparison.verdict} ({clocks}; at most {CLOCKS_APART:.0%} apart is comparable)"
    failed = "; ".join(
        f"{c.name}: {figure(c.worst)} where {figure(c.limit)} is allowed, {c.where}"
        for c in parity.failed
    )
    if parity.batch_to_take is not None:
        return (
            f"too small to judge: a second run of {other}, from weights that are moved by a "
            f"rounding, does not pass either ({failed}). Take a batch size of "
            f"{parity.batch_to_take:,} or more"
        )
    if parity.verdict == "same at first, then not":
        (check,) = parity.failed
        return (
            f"same at first, then not: its loss parts from that of {other} at {check.where} "
            f"({figure(check.worst)} apart where {figure(check.limit)} is allowed)"
        )
    return f"not comparable with {other}, since it does not compute the same training ({failed})"


def caution_line(comparison: Comparison) -> str:
    """Return a warning if the baseline is slower than what one would pick instead, else ''.

    An emulated bfloat16 baseline is slower than eager fp32.
    """
    r = comparison.baseline
    if r.config["amp_level"] == "O0" or not hardware.emulated_bf16(r.environment):
        return ""
    return (
        "Read with care: this CPU has no bfloat16 units, so the baseline emulates them, and eager "
        "fp32 (O0) would be faster than it. Compare at O0 to see what is gained over that."
    )


def loader_line(runs: Mapping[str, Results]) -> str:
    """Return a sentence on runs whose loader is slower than their steps; '' where none is."""
    steps = [
        f"{name} {seconds(run.sustained['step_seconds'])} ({seconds(run.step_seconds['p50'])})"
        for name, run in runs.items()
        if hidden_wait(run.step_seconds["p50"], run.sustained)
    ]
    if not steps:
        return ""
    return (
        "The loader is slower than the steps. A sustained step, which counts over a whole run (and "
        f"the median one), takes: {', '.join(steps)}."
    )


def lines(comparison: Comparison) -> list[str]:
    """Return the verdict, followed by what a reader must know before any figure."""
    load_sentence = comparison.load.sentence() if comparison.load else ""
    others = [load_sentence, loader_line(comparison.variants), caution_line(comparison)]
    return [*filter(None, [one_line(comparison), *others])]


def break_even_line(comparison: Comparison) -> str:
    """Return, as a sentence, after how many steps the longer start-up has paid off.

    Where there is no such number, the sentence says so.
    """
    break_even = _break_even(comparison)
    return f"Break-even: {break_even}." if break_even else "There is no break-even."


def conditions_line(comparison: Comparison) -> str:
    """Return the conditions that the figures must be read with."""
    r = comparison.baseline
    pair = " and ".join(dict.fromkeys(map(precision, comparison.variants.values())))
    processes = f"{r.world_size} process{'' if r.world_size == 1 else 'es'}"
    threads = f"{r.config['threads']} thread{'' if r.config['threads'] == 1 else 's'}"
    if (workers := r.config["workers"]) > 1:
        threads += f" and {workers} that load data"
    return (
        f"{task_name(r.task)}, {pair}, {batch(r)}, {processes} × {threads}; "
        f"baseline: PyTorch eager, default layout and allocator. {hardware.describe(r.environment)}"
    )


# --------------------------------------------------------------------------------------------------
# Parity


MEANINGS = {
    "finite losses": "Whether the loss of both is a finite number at every step of the comparison.",
    "baseline": (
        "How far the baseline itself is from float64. What is allowed to the candidate is made of "
        "this, so a wrong baseline, or a wrong reference, must not pass."
    ),
    "same start": (
        "Whether baseline, candidate and a float64 run begin with the same weights and batches, to "
        "the bit. Counted is what differs."
    ),
    "losses": "How far a loss of the candidate is from that of the same training in float64.",
    "gradients": (
        "How far a parameter's gradient is from the same gradient in float64, relative to its "
        "length: 0 is the same, 1 is as far off as a gradient of zeros."
    ),
    "gradient scale": (
        "How much longer or shorter a parameter's gradient is than the baseline's, over several "
        "batches, as a part of its length. A wrong factor shows here, and rounding hardly does."
    ),
    "all losses": (
        "How far a loss of the candidate is from the baseline's, over all steps of the comparison."
    ),
}
"""What each check compares, relative to what."""


def figure(value: float | None) -> str:
    """Return a value of a check; None stands for what is no finite number."""
    return "not finite" if value is None else number(value)

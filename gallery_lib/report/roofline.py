"""Tables and text of a roofline: how near each group of operators is to the limits."""

from __future__ import annotations

import textwrap

from gallery_lib.console.text import Rows, number, text_table
from gallery_lib.console.text import seconds as seconds_text
from gallery_lib.measure.roofline_result import (
    BETWEEN,
    PRODUCTS,
    Part,
    Roofline,
    summed,
)
from gallery_lib.measure.step_profile import FUSED

REST = "rest"
_SMALL = 0.01  # of a step: smaller groups are shown as one
_OPERATIONS_SHOWN = 10
_COLUMNS, _END = 25, 13  # of names and shapes, and of their end where they are longer
_TERA, _GIGA, _MEGA = 1e12, 1e9, 1e6
_HEADER = ["ms", "at limits", "share", "to gain"]


def shown_groups(roofline: Roofline) -> list[Part]:
    """Return the groups, the most seconds to gain first; those below 1 % of a step as one."""
    large = [g for g in roofline.groups if g.seconds >= _SMALL * roofline.seconds]
    small = [group for group in roofline.groups if group not in large]
    return [*large, summed(REST, small)] if small else large


def group_rows(roofline: Roofline) -> Rows:
    """Return the table of groups, with the whole step last."""
    step = summed("step", roofline.groups)
    return [
        ["group of operators", *_HEADER, "GB", "GFLOP", "reached"],
        *(
            [
                part.name,
                *_figures(part),
                number(part.bytes / _GIGA),
                number(part.flops / _GIGA),
                "" if part is step else _reached(part),
            ]
            for part in [*shown_groups(roofline), step]
        ),
    ]


def operation_rows(roofline: Roofline) -> Rows:
    """Return the table of the operators with the most seconds to gain."""
    rows = [["operator", "shapes or size", "calls", *_HEADER[:3], "reached"]]
    timed = [p for p in roofline.operations if p.name != BETWEEN and p.limited_by is not None]
    for part in timed[:_OPERATIONS_SHOWN]:
        name = part.name.removeprefix("aten::").removeprefix("cpp_fused_").strip("_")
        size = f"{number(part.bytes / part.calls / _MEGA)} MB a call" if part.calls else ""
        rows.append(
            [
                _shortened(name),
                _shortened(part.shapes or size),
                str(part.calls),
                *_figures(part)[:3],
                _reached(part),
            ]
        )
    return rows


def _figures(part: Part) -> list[str]:
    """Return the cells of `_HEADER`."""
    times = (part.seconds, part.limit_seconds, part.gain)
    measured, limit, gain = (f"{1000 * value:,.1f}" for value in times)
    return [measured, limit, _share(part), gain]


def _share(part: Part) -> str:
    return "—" if part.share is None or part.limited_by is None else f"{part.share:.0%}"


def _reached(part: Part) -> str:
    """Return the rate that a part reached, of what limits it."""
    if not part.seconds or part.limited_by is None:
        return "—"
    if part.limited_by != PRODUCTS:
        return f"{number(part.bytes / part.seconds / _GIGA)} GB/s"
    rate = part.flops / part.seconds
    large = rate >= _TERA
    return f"{number(rate / (_TERA if large else _GIGA))} {'T' if large else 'G'}FLOP/s"


def _shortened(text: str) -> str:
    """Return the text in at most `_COLUMNS` columns; kernels differ at the end of their names."""
    return text if len(text) <= _COLUMNS else f"{text[: _COLUMNS - _END - 1]}…{text[-_END:]}"


def headline(roofline: Roofline) -> str:
    """Return what was measured, in a line."""
    options = roofline.options
    sizes = [
        f"{name.replace('_', ' ')} {options[name]}"
        for name in ("batch_size", "image_size", "sequence_length")
        if options.get(name)
    ]
    form = "compiler-opt" if options["compiler_opt"] else "eager"
    return ", ".join([roofline.task.rsplit(":", 1)[-1], options["amp_level"], *sizes, form])


def _limit_lines(roofline: Roofline) -> list[str]:
    """Return the limits and the step times, a line each."""
    lines = [
        *(
            f"matrix product in {dtype}: {number(rate / _TERA)} TFLOP/s"
            for dtype, rate in roofline.limits.flops_per_second.items()
        ),
        f"copy: {number(roofline.limits.copy_bytes_per_second / _GIGA)} GB/s",
        f"step: {seconds_text(roofline.step_seconds)}",
        f"step under the profiler: {seconds_text(roofline.profiled_seconds)}",
    ]
    load_sentence = roofline.load.sentence() if roofline.load else ""
    return [*lines, *textwrap.wrap(load_sentence, 100)]


def _answer(roofline: Roofline) -> str:
    """Return where the next factor is: the group with the most seconds to gain."""
    first = shown_groups(roofline)[0]
    gain = max(first.gain, 0.0)
    return (
        f"Most to gain: {first.name}, {seconds_text(gain)} of {seconds_text(roofline.seconds)}.\n"
        f"With it at its limits the step would be "
        f"{roofline.seconds / (roofline.seconds - gain):.2f}× as fast; with all groups at theirs, "
        f"{roofline.seconds / roofline.limit_seconds:.2f}×."
    )


def text(roofline: Roofline) -> str:
    """Return the whole report for a terminal, 100 columns wide at most."""
    notes = [
        "At limits: the longer of FLOPs at the product's rate and bytes at the copy's, operator by",
        "operator. Bytes: inputs read and outputs written once. Caches can exceed 100 %.",
        f"Element-wise FLOPs count as none. No data loading. `{BETWEEN}`: Python and dispatch.",
    ]
    if roofline.options["compiler_opt"]:
        notes.append(f"`{FUSED}`: bytes by Inductor's own count of each fused loop.")
    parts = [
        "\n".join([headline(roofline), *_limit_lines(roofline)]),
        text_table(group_rows(roofline)),
        _answer(roofline),
        text_table(operation_rows(roofline)),
        "\n".join(notes),
    ]
    return "\n\n".join(parts)

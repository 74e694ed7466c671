"""Tables of a roofline: groups of operators, and the operators with most seconds to gain."""

from __future__ import annotations

from gallery_lib.console.table import Rows, number, text_table
from gallery_lib.console.table import seconds as seconds_text
from gallery_lib.measure.bench.result import OURS
from gallery_lib.measure.comparison.machine_load import of_others
from gallery_lib.measure.profile.operator_groups import FUSED
from gallery_lib.measure.profile.roofline.combined import summed
from gallery_lib.measure.profile.roofline.result import (
    BETWEEN,
    PRODUCTS,
    Part,
    Roofline,
    Spread,
)

REST = "rest"
_SMALL = 0.01  # of a step: smaller groups are shown as one
_OPERATIONS_SHOWN = 10
_COLUMNS, _END = 25, 13  # of names and shapes, and of their end where they are longer
_TERA, _GIGA, _MEGA = 1e12, 1e9, 1e6


def shown_groups(roofline: Roofline) -> list[Part]:
    """Return the groups, the most seconds to gain first; those below 1 % of a step as one."""
    large = [g for g in roofline.groups if g.seconds >= _SMALL * roofline.seconds]
    small = [group for group in roofline.groups if group not in large]
    if small:
        large.append(summed(REST, small))
    return large


def rate_text(part: Part) -> str:
    """Return the rate that a part reached, of what limits it."""
    if not part.seconds or part.limited_by is None:
        return "—"
    if part.limited_by == PRODUCTS:
        return _flops_rate(part.flops / part.seconds)
    return f"{number(part.bytes / part.seconds / _GIGA)} GB/s"


def _flops_rate(rate: float) -> str:
    if rate < _TERA:
        return f"{number(rate / _GIGA)} GFLOP/s"
    return f"{number(rate / _TERA)} TFLOP/s"


def share_text(part: Part) -> str:
    """Return the share of the limit, in per cent."""
    return "—" if part.share is None or part.limited_by is None else f"{part.share:.0%}"


def group_rows(roofline: Roofline) -> Rows:
    """Return the table of groups, with the whole step last."""
    rows = [["group of operators", *_HEADER, "GB", "GFLOP", "reached"]]
    for part in shown_groups(roofline):
        rows.append([part.name, *_figures(part), *_amounts(part), rate_text(part)])
    step = summed(REST, roofline.groups)
    return [*rows, ["step", *_figures(step), *_amounts(step), ""]]


_HEADER = ["ms", "at limits", "share", "to gain"]


def _figures(part: Part) -> list[str]:
    return [
        f"{1000 * part.seconds:,.1f}",
        f"{1000 * part.limit_seconds:,.1f}",
        share_text(part),
        f"{1000 * part.gain:,.1f}",
    ]


def _amounts(part: Part) -> list[str]:
    return [number(part.bytes / _GIGA), number(part.flops / _GIGA)]


def operation_rows(roofline: Roofline) -> Rows:
    """Return the table of the operators with the most seconds to gain."""
    rows = [["operator", "shapes or size", "calls", *_HEADER[:3], "reached"]]
    timed = [
        part for part in roofline.operations if part.name != BETWEEN and part.limited_by is not None
    ]
    for part in timed[:_OPERATIONS_SHOWN]:
        rows.append(
            [
                _shortened(part.name.removeprefix("aten::").removeprefix("cpp_fused_").strip("_")),
                _shortened(part.shapes or _size_of_call(part)),
                str(part.calls),
                *_figures(part)[:3],
                rate_text(part),
            ]
        )
    return rows


def _shortened(text: str) -> str:
    """Return the text in at most `_COLUMNS` columns; kernels differ at the end of their names."""
    return text if len(text) <= _COLUMNS else f"{text[: _COLUMNS - _END - 1]}…{text[-_END:]}"


def _size_of_call(part: Part) -> str:
    return f"{number(part.bytes / part.calls / _MEGA)} MB a call" if part.calls else ""


def _spread_text(spread: Spread, unit: float, name: str) -> str:
    low, high = number(spread.low / unit), number(spread.high / unit)
    return f"{number(spread.median / unit)} {name} ({low} to {high})"


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


def limit_lines(roofline: Roofline) -> list[str]:
    """Return the limits and the step times, a line each."""
    limits = roofline.limits
    lines = [
        f"matrix product in {dtype}: {_spread_text(rate, _TERA, 'TFLOP/s')}"
        for dtype, rate in limits.flops_per_second.items()
    ]
    lines.append(f"copy: {_spread_text(limits.copy_bytes_per_second, _GIGA, 'GB/s')}")
    unit = (1.0, "s") if roofline.step_seconds.median >= 1.0 else (1e-3, "ms")
    lines.append(f"step: {_spread_text(roofline.step_seconds, *unit)}")
    lines.append(f"step under the profiler: {_spread_text(roofline.profiled_seconds, *unit)}")
    cores = roofline.environment.get("cores", 0)
    if busy := of_others(roofline.others, cores, "meanwhile"):
        lines += [f"The machine was busy: {busy};", "repeat it when it is quiet."]
    return lines


def summary(roofline: Roofline) -> str:
    """Return the share of the limits that ours reaches, in a sentence."""
    return (
        f"{OURS} reaches {roofline.limit_seconds / roofline.seconds:.0%} of this machine's limits: "
        f"{seconds_text(roofline.seconds)} under the profiler, "
        f"{seconds_text(roofline.limit_seconds)} at the limits."
    )


def answer(roofline: Roofline) -> str:
    """Return where the next factor is: the group with the most seconds to gain."""
    first = shown_groups(roofline)[0]
    rest = roofline.seconds - max(first.gain, 0.0)
    return (
        f"Most to gain: {first.name}, {seconds_text(max(first.gain, 0.0))} of "
        f"{seconds_text(roofline.seconds)}.\nWith it at its limits the step would be "
        f"{roofline.seconds / rest:.2f}× as fast; with all groups at theirs, "
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
    return "\n".join(
        [
            headline(roofline),
            *limit_lines(roofline),
            "",
            text_table(group_rows(roofline)),
            "",
            answer(roofline),
            "",
            text_table(operation_rows(roofline)),
            "",
            *notes,
        ]
    )

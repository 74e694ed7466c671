"""Table of one task of a bench: a line for each variant, or for each added technique."""

from __future__ import annotations

from gallery_lib.console.table import Rows, seconds
from gallery_lib.measure.bench.result import OURS, Outcome, Row
from gallery_lib.measure.variants.forms import BEST
from gallery_lib.stats import Ratio


def task_rows(outcome: Outcome, kind: str) -> Rows:
    """Return the table of one task of a bench or a waterfall.

    A bench has a line for each variant, a waterfall one for each added technique.
    """
    baseline, waterfall = outcome.baseline, kind == "waterfall"
    rows = [_header(baseline, waterfall=waterfall)]
    products = max((rate for name, rate in outcome.limits.items() if name != "copy"), default=0.0)
    before = baseline
    for name, row in outcome.rows.items():
        label = f"+ {name}" if waterfall and name != baseline else name
        if row.reason is not None:
            rows.append([label, *[""] * 9, reason_text(row)])
            continue
        second = (
            outcome.ratio(before, name)
            if waterfall and before != baseline
            else outcome.ratio(name, OURS)
        )
        rows.append(
            [
                label,
                seconds(row.step_seconds["p50"]),
                f"{row.samples_per_second['global']:.1f}",
                f"{row.samples_per_second['whole_run']:.1f}",
                f"{row.startup_seconds['total']:.1f} s",
                _gibibytes(row),
                ratio_text(outcome.ratio(baseline, name)),
                ratio_text(second),
                _rate(row.flops_per_second, products),
                _rate(row.bytes_per_second, outcome.limits["copy"]),
                _parity(row),
            ]
        )
        before = name
    return rows


def _header(baseline: str, *, waterfall: bool) -> list[str]:
    return [
        "+ technique" if waterfall else "variant",
        "step",
        "samples/s",
        "whole run",
        "start-up",
        "peak memory",
        f"over {baseline}",
        "over the row above" if waterfall else "ours over it",
        "GFLOP/s (of limit)",
        "GB/s (of limit)",
        "parity",
    ]


def ratio_text(ratio: Ratio | None) -> str:
    """Return a ratio with its interval; '' without one."""
    return "" if ratio is None else str(ratio)


def reason_text(row: Row) -> str:
    """Return why a variant has no figures."""
    if str(row.reason).startswith(("not installed", "does not apply")):
        return str(row.reason)
    return f"did not run: {row.reason}"


def _gibibytes(row: Row) -> str:
    value = row.peak_memory_bytes.get("device") or row.peak_memory_bytes.get("host")
    return "" if value is None else f"{value / 2**30:.2f} GiB"


def _rate(value: float | None, limit: float) -> str:
    """Return a rate in 10⁹ a second and as a part of the limit; '' without a value."""
    return "" if value is None else f"{value / 1e9:.3g} ({value / limit:.0%})"


def _parity(row: Row) -> str:
    if row.parity is None:
        return "baseline"
    if row.parity["passed"]:
        return "passed"
    failed = [check["name"] for check in row.parity["checks"] if not check["passed"]]
    return f"FAILED: {', '.join(failed)}"


def limits_line(outcome: Outcome) -> str:
    """Return a line with the limits that the machine reached in the same run."""
    products = ", ".join(
        f"{rate / 1e9:.0f} GFLOP/s in {name}"
        for name, rate in outcome.limits.items()
        if name != "copy"
    )
    return (
        f"Limits of the machine, measured just before: matrix products {products}; copying "
        f"{outcome.limits['copy'] / 1e9:.1f} GB/s."
    )


def best_forms_line(outcome: Outcome) -> str | None:
    """Return a line with the settings of the best forms in this task; None where none ran.

    The settings are those of the first best form that ran.
    """
    rows = [row for name in BEST if (row := outcome.rows.get(name)) and row.reason is None]
    if not rows or not (techniques := rows[0].techniques):
        return None
    return f"At its best: {'; '.join(f'{name}: {what}' for name, what in techniques.items())}."

"""Results as tables, as plain text for a terminal and as Markdown for a notebook, from the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gallery_lib import hardware
from gallery_lib.errors import InputError
from gallery_lib.results import Results, check_folder, data_lines, read_results
from gallery_lib.table import Rows, markdown_table, text_table
from gallery_lib.table import seconds as _seconds

if TYPE_CHECKING:
    from gallery_lib.measure.comparison import Comparison


def _gibibytes(value: int | None) -> str:
    return "no GPU" if value is None else f"{value / 2**30:.2f} GiB"


def precision_of(results: Results) -> str:
    """`O1 (autocast)` or `O0 (fp32)`."""
    return "O1 (autocast)" if results.config["amp_level"] == "O1" else "O0 (fp32)"


def results_rows(results: Results) -> Rows:
    """One run: what was measured, a line each."""
    rows = [["figure", "value"]]
    rows += [[f"step time {name}", _seconds(results.step_seconds[name])] for name in ("p50", "p75", "p90", "p95")]
    rates = results.samples_per_second
    rows += [
        ["steady state, all processes", f"{rates['global']:.1f} samples/s"],
        ["steady state, per device", f"{rates['per_device']:.1f} samples/s"],
        ["whole run, with start-up", f"{rates['whole_run']:.1f} samples/s"],
        ["start-up", f"{results.startup_seconds['total']:.1f} s, of which compiling {results.startup_seconds['compile']:.1f} s"],
        ["peak memory, host", _gibibytes(results.peak_memory_bytes["host"])],
        ["peak memory, device", _gibibytes(results.peak_memory_bytes["device"])],
        ["loss, first and last", f"{results.loss['first']} → {results.loss['last']}"],
    ]
    rows += [[f"held-out {name}", f"{value:.3f}"] for name, value in results.metrics.items()]
    return rows + [[f"backend: {name}", what] for name, what in results.techniques.items()]


def results_text(results: Results) -> str:
    """One run, for a terminal."""
    title = (
        f"{results.task}, {results.world_size} process(es), {precision_of(results)}, batch size {results.config['batch_size']} a process"
    )
    return f"\n{title}\n{text_table(results_rows(results))}"


def comparison_rows(comparison: Comparison) -> Rows:
    """Both variants side by side."""
    names = list(comparison.variants)
    both = list(comparison.variants.values())
    rows = [["", *names]]
    rows += [[f"step time {name}", *(_seconds(r.step_seconds[name]) for r in both)] for name in ("p50", "p75", "p90", "p95")]
    rows += [
        ["steady state", *(f"{r.samples_per_second['global']:.1f} samples/s" for r in both)],
        ["whole run, with start-up", *(f"{r.samples_per_second['whole_run']:.1f} samples/s" for r in both)],
        ["start-up", *(f"{r.startup_seconds['total']:.1f} s" for r in both)],
        ["… of which compiling", *(f"{r.startup_seconds['compile']:.1f} s" for r in both)],
        ["peak memory, host", *(_gibibytes(r.peak_memory_bytes["host"]) for r in both)],
        ["page faults a step, host", *(f"{r.page_faults:,.0f}" for r in both)],
        ["peak memory, device", *(_gibibytes(r.peak_memory_bytes["device"]) for r in both)],
        [
            "loss, first → last",
            *(
                f"{r.loss['first']:.3f} → {r.loss['last']:.3f}" if None not in (r.loss["first"], r.loss["last"]) else "not finite"
                for r in both
            ),
        ],
    ]
    for name, value in comparison.baseline.metrics.items():
        label = f"held-out {name}" + (f" (chance {comparison.chance[name]:.2f})" if name in comparison.chance else "")
        rows.append([label, f"{value:.3f}", f"{comparison.candidate.metrics[name]:.3f}"])
    return rows


def parity_rows(comparison: Comparison) -> Rows:
    """The checks, with the worst value met and the limit that held there."""
    rows = [["parity check", "worst", "limit", "where", ""]]
    return rows + [
        [c.name, f"{c.worst:.2g}", f"{c.limit:.2g}", c.where, "passed" if c.passed else "FAILED"] for c in comparison.parity.checks
    ]


def verdict_line(comparison: Comparison) -> str:
    """The answer in one sentence."""
    if comparison.speedup is None:
        failed = "; ".join(
            f"{c.name}: {c.worst:.2g} where {c.limit:.2g} is allowed ({c.where})" for c in comparison.parity.checks if not c.passed
        )
        return f"not comparable: the two do not compute the same training ({failed}), so no speed-up is given."
    s = comparison.speedup
    first, second = comparison.variants
    return f"{second} against {first}: {s.ratio:.2f}× in steady state (interval {s.low:.2f} to {s.high:.2f}): {comparison.verdict}."


def break_even_line(comparison: Comparison) -> str:
    """After how many steps the longer start-up has paid."""
    if comparison.speedup is None:
        return "Break-even: not given, since the variants are not comparable."
    if comparison.break_even_steps is None:
        return "Break-even: never on this machine, since its steps are not shorter."
    if comparison.break_even_steps == 0:
        return "Break-even: at once, since its start-up is not longer."
    steps = comparison.break_even_steps
    minutes = steps * comparison.candidate.step_seconds["p50"] / 60
    return f"Break-even: after {steps} steps ({minutes:.1f} minutes of training), the longer start-up has paid for itself."


def conditions_line(comparison: Comparison) -> str:
    """What the figures must be read with."""
    r = comparison.baseline
    pair = " and ".join(dict.fromkeys(precision_of(v) for v in comparison.variants.values()))
    size = f", images {r.config['image_size']}²" if r.config.get("image_size") else ""
    return (
        f"{r.task}, {pair}, batch size {r.config['batch_size']} a process{size}, {r.world_size} process(es) × "
        f"{r.config['threads']} thread(s); baseline: PyTorch eager, default layout and allocator. {hardware.describe(r.environment)}"
    )


def caution_line(comparison: Comparison) -> str:
    """What makes the baseline slower than what one would pick instead, or ''."""
    r = comparison.baseline
    if r.config["amp_level"] == "O0" or not hardware.emulated_bf16(r.environment):
        return ""
    return (
        "Read with care: this CPU has no bfloat16 units, so the baseline emulates them, and eager fp32 (O0) would be faster than it. "
        "Compare at O0 to see what is gained over that."
    )


def comparison_text(comparison: Comparison) -> str:
    """A comparison, for a terminal."""
    techniques = [f"  {name}: {what}" for name, what in comparison.candidate.techniques.items()]
    parts = [
        "",
        conditions_line(comparison),
        text_table(comparison_rows(comparison)),
        "",
        text_table(parity_rows(comparison)),
        "",
        verdict_line(comparison),
        *filter(None, [caution_line(comparison)]),
        break_even_line(comparison),
        *(f"Data: {line}" for line in data_lines(comparison.baseline.data)),
        "What the backend did:",
        *techniques,
        f"results: {comparison.folder}/comparison.json",
    ]
    return "\n".join(parts)


def comparison_markdown(comparison: Comparison) -> str:
    """A comparison, for a notebook."""
    return "\n\n".join(
        [
            " ".join(filter(None, [f"**{verdict_line(comparison)}**", caution_line(comparison), break_even_line(comparison)])),
            markdown_table(comparison_rows(comparison)),
            markdown_table(parity_rows(comparison)),
            f"*{conditions_line(comparison)}*",
        ]
    )


def folder_text(folder: Path | str) -> str:
    """The tables of every comparison and of every other run at or below `folder`. InputError when there is none."""
    from gallery_lib.measure.comparison import read_comparison

    check_folder(folder)
    root = Path(folder)
    comparisons = sorted(path.parent for path in root.rglob("comparison.json"))
    runs = sorted(p.parent for p in root.rglob("results.json") if not any(c in p.parents for c in comparisons))
    if not comparisons and not runs:
        raise InputError(f"{root} holds no finished run and no comparison.")
    return "\n".join([comparison_text(read_comparison(c)) for c in comparisons] + [results_text(read_results(r)) for r in runs])

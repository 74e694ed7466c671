"""The page of results across machines: every comparison that `measured` found, as a picture and a table, and each file's conditions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gallery_lib.measure.outcome import Bench
from gallery_lib.site.measured import Measurement, ResultFile, mark, of, speedup_text
from gallery_lib.table import Rows, markdown_table

FIGURE = "speedups.png"
_HEAD = """# Results across machines

Speed-up: median step time of PyTorch eager (the baseline) over that of the accelerated backend at the same precision, both alive at
the same time and taking turns, with its interval. Where parity failed there is no speed-up. {doc}`guides/numbers` says how to
read them. *Stale*: measured with other code than what was here when this page was built, or with code that was not recorded. A
figure holds for its machine; what no file below names, any GPU for one, **has not been measured**.
"""


def rows(measurements: list[Measurement], digests: Mapping[str, str]) -> Rows:
    """A line each, under a header; `digests` name the code that is here, by notebook."""
    header = ["notebook or task", "precision", "processes", "speed-up (interval)", "break-even", "machine", "measured", "file"]
    body = [
        [
            m.name,
            m.precision,
            str(m.processes),
            speedup_text(m),
            f"{m.break_even_steps} steps" if m.break_even_steps is not None else "—",
            m.machine,
            m.date + mark(m, digests),
            m.source,
        ]
        for m in measurements
    ]
    return [header, *body]


def _label(measurement: Measurement) -> str:
    return f"{measurement.name}, {measurement.precision}, {measurement.processes}p"


def figure_text(measurements: list[Measurement]) -> str:
    """Alternative text of `draw`."""
    shown = [m for m in measurements if m.speedup]
    machines = len({m.machine for m in shown})
    ordered = sorted(shown, key=lambda m: m.speedup.ratio if m.speedup else 0)
    ends = " to ".join(f"{speedup_text(m)} ({_label(m)})" for m in (ordered[0], ordered[-1]))
    return (
        f"Dot plot of {len(shown)} speed-ups with their intervals, on {machines} machine(s): from {ends}. The table below has every figure."
    )


def draw(measurements: list[Measurement], path: Path) -> None:
    """Every speed-up with its interval, a colour and a marker for each machine, beside the line of no difference."""
    from matplotlib.figure import Figure

    from gallery_lib.report.plots import COLOURS

    shown = [m for m in measurements if m.speedup]
    labels = list(dict.fromkeys(map(_label, shown)))
    machines = list(dict.fromkeys(m.machine for m in shown))
    figure = Figure(figsize=(7.0, 1.6 + 0.3 * len(labels)), layout="constrained")
    axes = figure.subplots()
    for number, machine in enumerate(machines):
        own = [(m.speedup, labels.index(_label(m)) + 0.15 * number) for m in shown if m.machine == machine and m.speedup]
        ratios, heights = [s.ratio for s, _ in own], [height for _, height in own]
        errors = [[s.ratio - s.low for s, _ in own], [s.high - s.ratio for s, _ in own]]
        marker, colour = "osD^v"[number % 5], COLOURS[number % len(COLOURS)]
        axes.errorbar(ratios, heights, xerr=errors, fmt=marker, color=colour, capsize=3, label=machine)
    axes.axvline(1.0, color="black", linewidth=1, linestyle=":")
    axes.set(xlabel="speed-up of the accelerated backend over PyTorch eager", yticks=range(len(labels)), yticklabels=labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)  # the first at the top
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", frameon=False)
    figure.savefig(path, dpi=110)


def _bench_parts(bench: Bench, picture: Path) -> list[str]:
    """What `gallery bench` says of itself: its picture, which is written, and its tables."""
    from gallery_lib.report.bench import figure, figure_text, markdown_tables

    figure(bench).savefig(picture, dpi=110)
    return [f"![{figure_text(bench)}]({picture.name})", markdown_tables(bench, heading="### ")]


def _file_section(file: ResultFile, folder: Path) -> str:
    parts = [f"## {file.name}", f"{file.described}. Measured on {file.date} with `{file.command}`."]
    if file.measurements:
        parts.append(f"{len(file.measurements)} comparison(s), in the table above.")
    if file.bench:
        parts += _bench_parts(file.bench, folder / f"{Path(file.name).stem}.png")
    if file.others:
        parts.append(markdown_table([["figure", "value"], *([name, f"`{value}`"] for name, value in file.others)]))
    return "\n\n".join(parts)


def write_page(files: list[ResultFile], digests: Mapping[str, str], folder: Path) -> None:
    """`results.md` in `folder`, with its figures; `digests` name the code that is here, by notebook."""
    found = of(files)
    parts = [_HEAD]
    if any(measurement.speedup for measurement in found):
        draw(found, folder / FIGURE)
        parts.append(f"![{figure_text(found)}]({FIGURE})")
    nothing = "Nothing has been measured yet: `benchmarks/results/` holds no comparison."
    parts.append(markdown_table(rows(found, digests)) if found else nothing)
    parts += [_file_section(file, folder) for file in files]
    (folder / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")

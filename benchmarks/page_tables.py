"""Tables of a machine's page, one function for each kind of benchmark.

`page_kinds.py` says which file gets which table.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from published import File

from gallery_lib.console.table import Rows, markdown_table, seconds
from gallery_lib.measure.replay.sweep_table import read_sweep
from gallery_lib.report.bench.figure import figure_text
from gallery_lib.report.bench.task_table import task_rows
from gallery_lib.report.replay.gains import gains_rows
from gallery_lib.report.replay.scatter import scatter_text
from gallery_lib.stats import Ratio

_PLAIN = "ddp"


def _ratio(values: dict[str, float] | None) -> str:
    return "–" if values is None else str(Ratio(values["ratio"], values["low"], values["high"]))


def _by_run(header: Sequence[str], rows: dict[tuple[str, ...], dict[int, str]]) -> Rows:
    """Return rows with a column for each run, from cells by key and run."""
    runs = sorted({run for cells in rows.values() for run in cells})
    columns = [f"run {run}" for run in runs] if len(runs) > 1 else ["speed-up"]
    return [
        [*header, *columns],
        *([*key, *(cells.get(run, "–") for run in runs)] for key, cells in rows.items()),
    ]


def host_time(files: Sequence[File]) -> str:
    """Return the table of the host's time for a step of each task and variant."""
    rows = [["task", "variant", "host", "kernels", "times `inductor + graphs`"]]
    for task, found in files[-1].content["tasks"].items():
        for variant, row in found["summary"].items():
            low, high = (f"{limit(row['ratios']):.2f}" for limit in (min, max))
            times = [f"{row['host_ms']:.2f} ms", str(row["launches"]), f"{low} to {high}"]
            rows.append([task, variant, *times])
    return markdown_table(rows)


def resnet50(files: Sequence[File]) -> str:
    """Return the table of each pair's speed-up, run by run."""
    names = {
        "O1": "eager O1",
        "O0": "eager fp32 (ours in fp32, too)",
        "fp32-O1": "eager fp32 (ours at O1)",
    }
    rows: dict[tuple[str, ...], dict[int, str]] = {}
    for row in files[-1].content["comparisons"]:
        cells = rows.setdefault((names[row["pair"]],), {})
        cells[len(cells) + 1] = _ratio(row["speedup"]) if row["speedup"] else row["verdict"]
    return markdown_table(_by_run(["ours over"], rows))


def two_processes(files: Sequence[File]) -> str:
    """Return the table of each task on several processes, run by run."""
    rows: dict[tuple[str, ...], dict[int, str]] = {}
    for name, runs in files[-1].content["tasks"].items():
        sizes = ", ".join(f"{key.replace('_', ' ')} {n}" for key, n in runs[0]["sizes"].items())
        cells = rows.setdefault((name, sizes), {})
        for number, run in enumerate(runs, start=1):
            cells[number] = run["reason"] or _steps(run)
    return markdown_table(_by_run(["task", "of each process"], rows))


def _steps(comparison: dict[str, Any]) -> str:
    """Return the speed-up of a comparison with the steps of both sides, or its verdict."""
    if not comparison["speedup"]:
        return str(comparison["verdict"])
    before, after = (
        seconds(results["step_seconds"]["p50"]) for results in comparison["variants"].values()
    )
    return f"{before} → {after}, {_ratio(comparison['speedup'])}"


def own_script(files: Sequence[File]) -> str:
    """Return the table of the two forms of the script, and what the lines gain, run by run."""
    steps: dict[str, list[tuple[float, float]]] = {}
    ratios: dict[tuple[str, ...], dict[int, str]] = {}
    for file in files:
        content = file.content
        size = (
            f"batch {content['batch_size']}, {content['image_size']} pixels, {content['amp_level']}"
        )
        plain, accelerated = (
            statistics.median(_steady_medians(content, form)) for form in ("plain", "accelerated")
        )
        steps.setdefault(size, []).append((plain, accelerated))
        ratios.setdefault((size,), {})[file.run] = _ratio(content.get("speedup"))
    rows = {
        (
            *key,
            *(seconds(statistics.median(side)) for side in zip(*steps[key[0]], strict=True)),
        ): cells
        for key, cells in ratios.items()
    }
    return markdown_table(_by_run(["ResNet-18", "plain step (median)", "accelerated"], rows))


def _steady_medians(content: dict[str, Any], form: str) -> list[float]:
    """Return the median step of each run of a form, without its warm-up."""
    return [
        statistics.median(run["seconds"][content["warmup_steps"] :])
        for run in content["runs"][form]
    ]


def loader(files: Sequence[File]) -> str:
    """Return the table of images per second, with the ratio of each run."""
    rates: dict[int, list[tuple[float, float]]] = {}
    ratios: dict[int, dict[int, str]] = {}
    for file in files:
        for row in file.content["results"]:
            workers, rate = row["workers"], row["images_per_second"]
            rates.setdefault(workers, []).append((rate["torchvision"], rate["ours"]))
            ratios.setdefault(workers, {})[file.run] = _ratio(row["ratio"])
    rows = {
        (
            str(workers),
            *(f"{statistics.median(side):.0f}" for side in zip(*rates[workers], strict=True)),
        ): ratios[workers]
        for workers in sorted(rates)
    }
    return markdown_table(_by_run(["workers", "torchvision, images/s (median)", "ours"], rows))


def _ways(file: File) -> list[tuple[str, str, dict[str, float], float, float]]:
    """Return the strategies of a file: rate, name, speed-up, and two step times in seconds.

    The step times are those of DDP's own strategy and of this one.
    """
    content = file.content
    extras = [
        word
        for word, key in (
            ("DDP's own with a fused optimizer, too", "fused"),
            ("both compiled", "compiler_opt"),
        )
        if content.get(key)
    ]
    rate = content.get("rate") or file.series.split("-")[3]  # ddp-real-2x1-1gbit-…
    plain = content["ways"][_PLAIN]["step_seconds"]["p50"]
    ways = []
    for name, way in content["ways"].items():
        if name != _PLAIN:
            plainly = f"as they are: {name}" if way["options"]["wire"] == "exact" else name
            words = ", ".join(
                [way["options"]["wire"] if name == "accelerated" else plainly, *extras]
            )
            ways.append((rate, words, way["speedup"], plain, way["step_seconds"]["p50"]))
    return ways


def ddp(files: Sequence[File]) -> str:
    """Return the table of each averaging strategy over DDP's own, run by run.

    A later series of the same strategy replaces an earlier one.
    """
    series: dict[tuple[str, str], str] = {}
    steps: dict[tuple[str, str], list[tuple[float, float]]] = {}
    ratios: dict[tuple[str, str], dict[int, str]] = {}
    for file in sorted(files, key=lambda file: (file.dates[-1], file.series, file.run)):
        for rate, words, speedup, plain, way in _ways(file):
            key = rate, words
            if series.get(key) != file.series:
                series[key], steps[key], ratios[key] = file.series, [], {}
            steps[key].append((plain, way))
            ratios[key][file.run] = _ratio(speedup)
    rows = {
        (
            _rate_text(key[0]),
            key[1],
            *(seconds(statistics.median(side)) for side in zip(*steps[key], strict=True)),
        ): ratios[key]
        for key in sorted(ratios, key=lambda key: (-_bits(key[0]), key[1]))
    }
    return markdown_table(_by_run(["link", "gradients", "DDP's own step (median)", "ours"], rows))


def _rate_text(rate: str) -> str:
    """Return a rate for readers: `1 Gbit/s` for `1gbit`."""
    return f"{rate[:-4]} {rate[-4:].capitalize()}/s"


def _bits(rate: str) -> float:
    return (
        float(rate.removesuffix("gbit")) * 1e9
        if rate.endswith("gbit")
        else float(rate.removesuffix("mbit")) * 1e6
    )


def sweep(files: Sequence[File]) -> str:
    """Return the picture and table of how much other strategies gain by number of hosts."""
    table = files[-1].path.with_suffix(".csv")
    results = read_sweep(table)
    picture = f"![{scatter_text(results)}]({files[-1].name}.png)"
    return "\n\n".join(
        [
            picture,
            f"Replayed on: {results.machines}.",
            markdown_table(gains_rows(results)),
        ]
    )


def waterfall(files: Sequence[File]) -> str:
    """Return one picture and table for each task."""
    parts = []
    for file in files:
        assert file.bench is not None
        ((task, outcome),) = file.bench.tasks.items()
        sizes = ", ".join(
            f"{key.replace('_', ' ')} {value}" for key, value in outcome.sizes.items()
        )
        parts += [
            f"### {task}: {sizes}",
            f"![{figure_text(file.bench)}]({file.name}.png)",
        ]
        parts += [markdown_table(task_rows(outcome, "waterfall"))]
    return "\n\n".join(parts)


def trust(files: Sequence[File]) -> str:
    """Return the table of what was asked of each kind of comparison, and what was found."""
    content = files[-1].content
    rows = [["compared", "asked", "found", "ratios", "page faults a step"]]
    for kind, row in content["summary"].items():
        own = [comparison for comparison in content["comparisons"] if comparison["kind"] == kind]
        ratios = [comparison["speedup"]["ratio"] for comparison in own if comparison["speedup"]]
        faults = [count for comparison in own for count in comparison["page_faults"]]
        demand = f"{row['expected']} in {row['at_least']} of {row['of']}"
        span = f"{min(ratios):.3f} to {max(ratios):.3f}" if ratios else "–"
        rows.append(
            [
                kind,
                demand,
                f"{row['found'].get(row['expected'], 0)} of {row['of']}",
                span,
                f"{min(faults):.0f} to {max(faults):.0f}",
            ]
        )
    return markdown_table(rows)


def full_size(files: Sequence[File]) -> str:
    """Return the table of what came of a few steps of every task at its full size."""
    rows = [["task", "sizes", "step", "start-up", "peak memory", "outcome"]]
    for name, row in files[-1].content["tasks"].items():
        ran = "step_seconds" in row
        figures = (
            [
                seconds(row["step_seconds"]),
                f"{row['startup_seconds']:.1f} s",
                f"{row['peak_memory_bytes'] / 2**30:.1f} GiB",
            ]
            if ran
            else ["–"] * 3
        )
        sizes = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["sizes"].items())
        rows.append([name, sizes, *figures, row["outcome"]])
    return markdown_table(rows)


def gallery(files: Sequence[File]) -> str:
    """Return the table of each notebook's duration and speed-ups."""
    rows = [["notebook", "minutes", "one process", "two processes", "precision"]]
    for name, run in files[-1].content["notebooks"].items():
        by_processes = {comparison["processes"]: comparison for comparison in run["comparisons"]}
        speedups = [
            _ratio(c["speedup"]) if c and c["speedup"] else c["verdict"] if c else "–"
            for c in map(by_processes.get, (1, 2))
        ]
        levels = (
            ", ".join(dict.fromkeys(comparison["amp_level"] for comparison in run["comparisons"]))
            or "–"
        )
        rows.append([name, run["problem"] or f"{run['seconds'] / 60:.1f}", *speedups, levels])
    return markdown_table(rows)

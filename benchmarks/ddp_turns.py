"""Turns of gradient-averaging strategies, and their figures: shown, written and compared.

The benchmarks of gradient averaging share this module. Rates without a word are of one device, as
in `440/s`; that of all devices together is named.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gallery_lib import stats
from gallery_lib.comm.candidates import PLAIN
from gallery_lib.config import Comm
from gallery_lib.console.table import text_table
from gallery_lib.errors import InputError

PERCENTILES = ("p50", "p75", "p90", "p95")

Blocks = list[list[float]]
"""Seconds of steps, by turn."""


def order(ways: Mapping[str, Comm], rounds: int) -> list[str]:
    """Return the strategy of each turn.

    The order reverses from round to round, so that drift of the machine falls on all strategies.
    """
    return [name for number in range(rounds) for name in stats.turn_order(ways, number)]


def figures(ways: Mapping[str, Comm], seconds: Mapping[str, Blocks]) -> dict[str, Any]:
    """Return for each strategy its options, step times, and speed-up over DDP's own."""
    by_name: dict[str, Any] = {}
    for name, blocks in seconds.items():
        times = stats.percentiles([step for block in blocks for step in block])
        by_name[name] = {"options": dataclasses.asdict(ways[name]), "step_seconds": times}
        if name != PLAIN:
            ratio = stats.ratio_of_medians(seconds[PLAIN], blocks)
            by_name[name]["speedup"] = {**dataclasses.asdict(ratio), "verdict": ratio.verdict}
    return by_name


def line(seconds: Mapping[str, float], batch_size: int, hosts: Sequence[int], device: str) -> str:
    """Return a line of step times and rates per device: `8 GPUs -- 1M/8G: p50: 0.073s 440/s …`.

    Args:
        seconds: step times in seconds, by percentile.
        batch_size: samples per device and step.
        hosts: number of processes on each host.
        device: `GPU` or `CPU`.
    """
    world = sum(hosts)
    per_device = "  ".join(
        f"{name}:  {seconds[name]:.3f}s {batch_size / seconds[name]:.0f}/s" for name in PERCENTILES
    )
    total = f"all devices, p50: {world * batch_size / seconds['p50']:.0f}/s"
    return f"{world} {device}s -- {len(hosts)}M/{world}{device[0]}:  {per_device}  ({total})"


def text(
    figures_by_name: Mapping[str, Any], batch_size: int, hosts: Sequence[int], device: str
) -> str:
    """Return the result of `figures` as text, two or three lines for each strategy."""
    lines = []
    for name, way in figures_by_name.items():
        lines.append(f"{name}:\n  {line(way['step_seconds'], batch_size, hosts, device)}")
        if "speedup" in way:
            ratio = way["speedup"]
            lines.append(
                f"  {ratio['ratio']:.2f}× {PLAIN} (interval {ratio['low']:.2f} to "
                f"{ratio['high']:.2f}): {ratio['verdict']}"
            )
    return "\n".join(lines)


def diff(before: Path, after: Path) -> int:
    """Print the step times of the strategies that two files share, side by side, and return 0.

    Raises:
        InputError: for a file that this benchmark did not write.
    """
    files = []
    for path in (before, after):
        try:
            files.append(json.loads(path.read_text())["ways"])
        except (OSError, json.JSONDecodeError, KeyError) as error:
            raise InputError(
                f"{path} is no file of this benchmark ({type(error).__name__}: {error}). "
                "Give a file that `ddp_benchmark.py` or `ddp_lab.py run` wrote.",
                parameter=str(path),
            ) from None
    rows = [["way", str(before), str(after), "after / before"]]
    for name in files[0]:
        if name in files[1]:
            old, new = (file[name]["step_seconds"]["p50"] for file in files)
            rows.append([name, f"{old:.3f}s", f"{new:.3f}s", f"{new / old:.2f}"])
    print(text_table(rows))
    return 0

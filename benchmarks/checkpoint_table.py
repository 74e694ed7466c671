"""Table of what checkpoints cost, for the pages of results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from published import File

from gallery_lib.console.table import markdown_table, seconds


def checkpoints(files: Sequence[File]) -> str:
    """Return the table of steps with checkpoints and without, for each task and run."""
    rows = [
        [
            *("task", "batch", "step without", "with"),
            *("overhead", "copy", "written in", "size"),
        ]
    ]
    for file in files:
        for name, task in file.content["tasks"].items():
            overhead = task["overhead"]
            rows.append(
                [
                    name,
                    str(task["options"]["batch_size"]),
                    *(
                        seconds(statistics.median(task["step_seconds"][form]))
                        for form in ("without", "with")
                    ),
                    f"{100 * overhead['ratio']:+.1f} % "
                    f"({100 * overhead['low']:+.1f} to {100 * overhead['high']:+.1f} %)",
                    seconds(statistics.median(task["copy_seconds"])),
                    seconds(statistics.median(task["writing_seconds"])),
                    f"{task['checkpoint_bytes'] / 2**20:.0f} MiB",
                ]
            )
    return markdown_table(rows)

"""How far apart in speed two processes are that run the same code, which no number of turns between them shows.

A process whose allocator gives memory back to the kernel, as glibc's does by default, pays a page fault for each page that it
takes again. How many depends on what happens to lie on top of the heap: processes of the same code had 0 to 12,500 a step,
each about its own number for as long as it lived, and were up to 20 % apart. One that keeps its memory, or hardly needs any, has none of
this. `benchmarks/trust.py` measures both; benchmarks/notes/process-spread.md has the figures.
"""

from __future__ import annotations

import math

from gallery_lib import stats
from gallery_lib.memory import allocator
from gallery_lib.train.results import Results

KEEPS_MEMORY = stats.LEAST_SPREAD
"""Relative standard deviation of the step time over processes without page faults to speak of."""
GIVES_MEMORY_BACK = 0.05
"""Of the others."""

_FAULT_SECONDS = 2.5e-6
"""What one costs a step, roughly: 1.3 µs was measured in a small network, 5 µs in ResNet-50, where it also cools the caches."""
_PART_OF_STEP = 0.01
"""Above which page faults matter."""


def page_faults_part(results: Results) -> float:
    """Roughly the part of a step that its page faults cost."""
    return results.page_faults * _FAULT_SECONDS / results.step_seconds["p50"]


def of_ratio(baseline: Results, candidate: Results) -> float:
    """Relative standard deviation of the ratio of their step times, had both been started anew.

    Where one pays page faults and the other none, the other was lucky, unless it was told to keep its memory.
    """
    either_pays = max(page_faults_part(baseline), page_faults_part(candidate)) > _PART_OF_STEP
    return math.hypot(
        *(
            GIVES_MEMORY_BACK if either_pays and not _told_to_keep(each) else KEEPS_MEMORY
            for each in (baseline, candidate)
        )
    )


def _told_to_keep(results: Results) -> bool:
    return results.techniques.get("allocator", "").startswith(allocator.KEEPS)

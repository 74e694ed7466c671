"""Spread in speed between processes that run the same code, which turns between two do not show.

A process whose allocator gives memory back to the kernel, as glibc's does by default, pays a page
fault for each page that it takes again. How many depends on what happens to lie on top of the heap:
processes of the same code were up to 20 % apart, each for as long as it lived. A process that keeps
its memory, or hardly needs any, has no such spread. `benchmarks/trust.py` measures both;
benchmarks/notes/process-spread.md has the figures.
"""

from __future__ import annotations

import math

from gallery_lib import stats
from gallery_lib.memory import allocator
from gallery_lib.train.results import Results

KEEPS_MEMORY = stats.LEAST_SPREAD
"""Relative standard deviation of the step time over processes with hardly any page faults."""
GIVES_MEMORY_BACK = 0.05
"""Relative standard deviation of the step time over processes that give memory back."""
_FAULT_SECONDS = 2.5e-6  # 1.3 µs in a small network, 5 µs in ResNet-50: it also cools the caches
_NOTICEABLE_PART = 0.01  # of a step: above it, page faults matter


def page_faults_part(results: Results) -> float:
    """Return roughly the part of a step that its page faults cost."""
    return results.page_faults * _FAULT_SECONDS / results.step_seconds["p50"]


def of_ratio(baseline: Results, candidate: Results) -> float:
    """Return the relative standard deviation of the ratio of step times over restarts of both.

    Page faults in one process are a risk for both: the next start of the other may have them. A
    process whose allocator keeps its memory does not run that risk.
    """
    faults_matter = max(page_faults_part(baseline), page_faults_part(candidate)) > _NOTICEABLE_PART

    def spread(results: Results) -> float:
        keeps_memory = results.techniques.get("allocator", "").startswith(allocator.KEEPS)
        return GIVES_MEMORY_BACK if faults_matter and not keeps_memory else KEEPS_MEMORY

    # Independent relative errors of a ratio add up as the root of the sum of squares.
    return math.hypot(spread(baseline), spread(candidate))

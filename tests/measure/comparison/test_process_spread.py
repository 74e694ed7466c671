"""The page faults of their steps tell how alike processes of the same code are."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys

import pytest
from measure.comparison.test_compare import results

from gallery_lib.measure.comparison import process_spread
from gallery_lib.memory import allocator

GIVES_BACK = """
import torch
from gallery_lib.train.session import StepClock

clock = StepClock("cpu")
clock.start()
for _ in range(6):
    block = torch.ones(16 * 2**20)  # 64 MiB: glibc maps it anew each time
    del block
    clock.step_done()
print(clock.page_faults[-1])
"""


def test_page_faults_make_processes_unlike_but_those_that_were_told_to_keep_their_memory() -> None:
    few = dataclasses.replace(results(0.04, 1.0), page_faults=20.0)
    many = dataclasses.replace(few, page_faults=4400.0)
    # The same page faults matter less there.
    longer = dataclasses.replace(many, step_seconds={"p50": 4.0})
    keeps = dataclasses.replace(few, techniques={"allocator": allocator.KEEPS})
    alike, unlike = 0.004, 0.05
    for pair, parts in [
        ((few, few), (alike, alike)),
        ((longer, few), (alike, alike)),
        ((few, keeps), (alike, alike)),
        ((many, keeps), (unlike, alike)),
        ((many, many), (unlike, unlike)),
        ((many, few), (unlike, unlike)),  # the other was lucky
    ]:
        assert process_spread.of_ratio(*pair) == pytest.approx(math.hypot(*parts))


@pytest.mark.slow
@pytest.mark.skipif(
    allocator.reason_not_applied() is not None,
    reason="needs glibc 2.35 or newer, without another allocator preloaded",
)
def test_a_process_that_keeps_large_blocks_has_no_page_faults_and_one_that_does_not_has_them() -> (
    None
):
    def faults(environment: dict[str, str]) -> int:
        command = [sys.executable, "-c", GIVES_BACK]
        return int(
            subprocess.run(
                command,
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )

    assert (
        faults(allocator.allocator_variables())
        < 100
        < 16_000
        <= faults({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"})
    )

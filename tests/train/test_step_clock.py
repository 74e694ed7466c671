"""The step clock times steps and their phases, but nothing while it is paused.

Two numbers of a step are the median one, and the sustained one, in which no slow loader hides.
"""

import mmap
import time
from pathlib import Path

import pytest
from tiny_task import config

from gallery_lib.config import CompareConfig
from gallery_lib.measure.comparison.compare import compare
from gallery_lib.train.results import hidden_wait
from gallery_lib.train.session import StepClock


def clock(durations: list[float], inputs: list[float]) -> StepClock:
    made = StepClock("cpu")
    made.durations, made.phases = durations, {"input": inputs}
    return made


def test_phases_of_usual_steps_add_up_to_one_where_medians_of_phases_do_not() -> None:
    waits = [9.0, 0.5, 0.1, 0.6, 0.1, 0.1, 0.1, 0.1, 7.0]
    rest = [0.1, 0.1, 0.5, 0.1, 0.6, 0.5, 0.5, 0.6, 0.1]
    made = clock([a + b for a, b in zip(waits, rest, strict=True)], waits)
    made.phases["forward"] = rest
    # The usual steps take 0.6, 0.6, 0.7 and 0.7 seconds.
    expected = {"input": pytest.approx(0.225), "forward": pytest.approx(0.425)}
    assert made.usual_phases(warmup=1) == expected


def touch_pages(pages: int) -> None:
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as fresh:
        fresh.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(pages):
            fresh[page * mmap.PAGESIZE] = 1


def test_a_pause_is_in_no_step_and_the_wait_before_it_in_its_own() -> None:
    clock = StepClock("cpu")
    clock.start()
    time.sleep(0.03)
    clock.phase_done("input")
    clock.pause()
    touch_pages(256)
    time.sleep(0.2)
    clock.resume()
    clock.phase_done("forward")
    clock.step_done()
    touch_pages(256)
    clock.step_done()
    first = clock.read()[0]
    phases = {name: values[0] for name, values in clock.phases.items()}
    assert 0.03 <= phases["input"] <= first < 0.2 and phases["forward"] < 0.2
    assert clock.read()[0] == pytest.approx(sum(phases.values()), abs=0.02)
    assert clock.page_faults[0] < 256 <= clock.page_faults[1]


WORKERS = 4
BATCH_SECONDS = 8 * 0.05 / WORKERS
"""Time of a batch of `BURSTS`: one of its four loading processes sleeps for each of 8 items."""


def test_the_sustained_step_leaves_out_what_lay_ready_and_needs_ten_times_as_many_steps() -> None:
    bursts = [0.08, 0.001, 0.001, 0.001] * 20
    made = clock([9.0] + [0.001] * 8 + [wait + 0.004 for wait in bursts], [0.0] * 9 + bursts)
    sustained = made.sustained(1, 8)
    assert sustained["step_seconds"] == pytest.approx(0.083 / 4 + 0.004)
    assert hidden_wait(0.005, sustained) == pytest.approx(0.083 / 4, rel=0.1)
    assert clock([0.005] * 88, [0.0] * 88).sustained(1, 8) == {"steps": 79, "steps_needed": 89}


def test_slow_steps_that_wait_for_no_data_are_not_the_loaders() -> None:
    sustained = clock([0.005, 0.02] * 50, [0.001] * 100).sustained(0, 4)
    assert sustained["step_seconds"] == pytest.approx(0.0125)
    assert hidden_wait(0.005, sustained) == 0


@pytest.mark.slow
def test_waiting_for_a_turn_does_not_hide_a_slow_loader(tmp_path: Path) -> None:
    outcome = compare(
        {name: config("BURSTS", workers=WORKERS) for name in ("one", "other")},
        options_=CompareConfig(rounds=24, block_steps=4),
        folder=tmp_path,
        progress=False,
    )
    for results in outcome.variants.values():
        assert results.sustained["step_seconds"] > 0.7 * BATCH_SECONDS
        assert results.samples_per_second["sustained"] == 8 / results.sustained["step_seconds"]

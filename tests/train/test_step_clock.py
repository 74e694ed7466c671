"""The step clock times steps and their phases, but nothing while it is paused."""

import mmap
import time

import pytest

from gallery_lib.train.session import StepClock


def test_phases_add_up_to_the_step() -> None:
    clock = StepClock("cpu")
    clock.start()
    for _ in range(2):
        time.sleep(0.01)
        clock.phase_done("input")
        time.sleep(0.03)
        clock.phase_done("forward")
        clock.step_done()
    steps = clock.read()
    assert [len(values) for values in clock.phases.values()] == [2, 2]
    for step, (total, wait, forward) in enumerate(
        zip(steps, clock.phases["input"], clock.phases["forward"], strict=True)
    ):
        assert wait >= 0.01 and forward >= 0.03, step
        assert total == pytest.approx(wait + forward, abs=0.01)


def test_phases_of_usual_steps_add_up_to_one_where_medians_of_phases_do_not() -> None:
    clock = StepClock("cpu")
    waits, rest = (
        [9.0, 0.5, 0.1, 0.6, 0.1, 0.1, 0.1, 0.1, 7.0],
        [0.1, 0.1, 0.5, 0.1, 0.6, 0.5, 0.5, 0.6, 0.1],
    )
    clock.phases = {"input": waits, "forward": rest}
    clock.durations = [a + b for a, b in zip(waits, rest, strict=True)]
    phases = clock.usual_phases(warmup=1)
    # The usual steps take 0.6, 0.6, 0.7 and 0.7 seconds.
    assert phases == {
        "input": pytest.approx(0.225),
        "forward": pytest.approx(0.425),
    }
    assert clock.usual_phases(warmup=8) == {"input": 7.0, "forward": 0.1}


def test_a_pause_is_in_no_step_and_no_phase() -> None:
    clock = StepClock("cpu")
    clock.start()
    clock.pause()
    time.sleep(0.05)
    clock.resume()
    clock.phase_done("forward")
    clock.step_done()
    assert clock.read()[0] < 0.05 and clock.phases["forward"][0] < 0.05
    assert clock.paused_seconds >= 0.05


def test_a_step_keeps_its_wait_for_data_across_a_pause() -> None:
    clock = StepClock("cpu")
    clock.start()
    time.sleep(0.03)
    clock.phase_done("input")
    clock.pause()
    time.sleep(0.2)
    clock.resume()
    clock.step_done()
    assert 0.03 <= clock.phases["input"][0] <= clock.read()[0] < 0.2


def test_page_faults_are_those_of_the_step_and_not_of_a_pause() -> None:
    pages = 256

    def touch() -> None:
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as fresh:
            fresh.madvise(mmap.MADV_NOHUGEPAGE)
            for page in range(pages):
                fresh[page * mmap.PAGESIZE] = 1

    clock = StepClock("cpu")
    clock.start()
    touch()
    clock.step_done()
    clock.pause()
    touch()
    clock.resume()
    clock.step_done()
    assert clock.page_faults[0] >= pages > clock.page_faults[1]

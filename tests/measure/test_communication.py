"""Wire formats learn what fp32 learns, within noise.

int8 without error feedback does not, where it matters.
"""

from __future__ import annotations

from statistics import mean

import pytest
from refusal import refused

from gallery_lib.config import ConvergenceConfig
from gallery_lib.measure.communication import convergence
from gallery_lib.measure.communication.convergence import FORMATS, FP32, WITHOUT_FEEDBACK, Scores

WITH_FEEDBACK = [name for name in FORMATS if name not in (FP32, WITHOUT_FEEDBACK)]


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [([0.89, 0.91], "within noise"), ([0.80, 0.82], "worse"), ([0.98, 1.0], "better")],
)
def test_a_format_is_judged_by_its_mean(scores: list[float], verdict: str) -> None:
    by_format = {FP32: [0.89, 0.93], "bf16": scores}
    assert Scores("planted", by_format).verdict("bf16") == verdict


def test_noise_is_two_standard_errors_of_a_difference_of_means_and_half_a_percent_at_least() -> (
    None
):
    for scores, noise in (
        ([0.90, 0.92, 0.94, 0.96], 2 * 0.02582 * (2 / 4) ** 0.5),
        ([0.8, 0.8], 0.004),
    ):
        found = Scores("planted", {FP32: scores}).noise
        assert found == pytest.approx(noise, rel=1e-3)


def test_one_process_is_refused() -> None:
    with refused(None, "one process", "convergence.py"):
        convergence.measure(ConvergenceConfig())


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.several_cores
def test_wire_formats_learn_what_fp32_learns_and_int8_without_error_feedback_does_not() -> None:
    found = convergence.measured(ConvergenceConfig(seeds=3))
    trainings = {scores.title: scores for scores in found}
    shared, mixed = trainings["digits"], trainings["digits, mixed units"]
    assert mean(shared.by_format[FP32]) > 0.9
    # The same training but for rounding.
    assert mixed.by_format[FP32] == pytest.approx(shared.by_format[FP32], abs=0.01)
    for scores in trainings.values():
        for wire in WITH_FEEDBACK:
            assert scores.verdict(wire) in ("within noise", "better"), scores
    assert mixed.verdict(WITHOUT_FEEDBACK) == "worse"
    assert mean(mixed.by_format[WITHOUT_FEEDBACK]) < 0.6 < 0.88 < mean(mixed.by_format["int8"])

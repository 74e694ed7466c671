"""Wire formats learn what fp32 learns, within the noise of its seeds.

int8 without error feedback does not, where it matters.
"""

from __future__ import annotations

from statistics import mean

import pytest
from refusal import refused

from gallery_lib.config import ConvergenceConfig
from gallery_lib.measure.communication import convergence
from gallery_lib.measure.communication.convergence import (
    FORMATS,
    FP32,
    WITHOUT_FEEDBACK,
    Scores,
    noise,
)

WITH_FEEDBACK = [name for name in FORMATS if name not in (FP32, WITHOUT_FEEDBACK)]
TASK = "tts_angular"


def test_noise_is_two_standard_errors_of_a_difference_of_means() -> None:
    assert noise([0.90, 0.92, 0.94, 0.96]) == pytest.approx(2 * 0.02582 * (2 / 4) ** 0.5, rel=1e-3)


def test_noise_is_half_a_percent_where_all_seeds_came_out_the_same() -> None:
    assert noise([0.8, 0.8]) == pytest.approx(0.004)


@pytest.mark.parametrize(
    ("higher_is_better", "scores", "verdict"),
    [
        (True, [0.89, 0.91], "within noise"),
        (True, [0.80, 0.82], "worse"),
        (True, [0.98, 1.0], "better"),
        (False, [0.98, 1.0], "worse"),
        (False, [0.80, 0.82], "better"),
    ],
)
def test_a_format_is_judged_by_its_mean(
    higher_is_better: bool, scores: list[float], verdict: str
) -> None:
    assert (
        Scores("planted", "score", higher_is_better, {FP32: [0.89, 0.93], "bf16": scores}).verdict(
            "bf16"
        )
        == verdict
    )


def test_one_process_and_an_unknown_task_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(None, "one process", "convergence.py"):
        convergence.measure(ConvergenceConfig())
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with refused("model", "'resnet51'", "`resnet50`"):
        convergence.measure(ConvergenceConfig(task="resnet51"))


@pytest.fixture(scope="module")
def trainings() -> dict[str, Scores]:
    """Return all trainings, made in one run of two processes."""
    config = ConvergenceConfig(seeds=3, task=TASK, task_steps=4, batch_size=8, sequence_length=8)
    return {scores.title: scores for scores in convergence.measured(config)}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.several_cores
def test_fp32_learns_digits_in_either_units(trainings: dict[str, Scores]) -> None:
    shared, mixed = (
        trainings[title].by_format[FP32] for title in ("digits", "digits, mixed units")
    )
    assert mean(shared) > 0.9
    assert mixed == pytest.approx(shared, abs=0.01)  # the same training but for rounding


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize("title", ["digits", "digits, mixed units", TASK])
@pytest.mark.parametrize("wire", WITH_FEEDBACK)
def test_a_wire_format_is_within_the_noise_of_fp32(
    trainings: dict[str, Scores], title: str, wire: str
) -> None:
    scores = trainings[title]
    assert scores.verdict(wire) in ("within noise", "better"), scores


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.several_cores
def test_without_error_feedback_int8_learns_much_less_in_mixed_units(
    trainings: dict[str, Scores],
) -> None:
    scores = trainings["digits, mixed units"]
    assert scores.verdict(WITHOUT_FEEDBACK) == "worse"
    assert mean(scores.by_format[WITHOUT_FEEDBACK]) < 0.6 < 0.88 < mean(scores.by_format["int8"])

"""Bytes of gradients, counted by hand; and wire formats learn what fp32 learns, within noise.

int8 without error feedback does not, where it matters.
"""

from __future__ import annotations

from statistics import mean

import pytest
import torch
from refusal import refused

from gallery_lib import tasks
from gallery_lib.config import Comm, ConvergenceConfig
from gallery_lib.measure.communication import convergence
from gallery_lib.measure.communication.convergence import FORMATS, FP32, WITHOUT_FEEDBACK, Scores
from gallery_lib.measure.communication.strategies import gradient_bytes, sent_bytes, shapes_of

WITH_FEEDBACK = [name for name in FORMATS if name not in (FP32, WITHOUT_FEEDBACK)]
TASK = "tts_angular"
SHAPES = [(300, 200), (200,), (8, 3, 2, 2)]
"""Shapes of 60 000, 200 and 96 values."""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Comm(), 4 * 60_296),
        (Comm(wire="bf16"), 2 * 60_296),
        (Comm(wire="fp16"), 2 * 60_296),
        # 236 scales of 4 bytes, and codes, filled up to a multiple of 16.
        (Comm(wire="int8"), 944 + 60_304),
    ],
)
def test_each_format_takes_what_it_is_made_of(options: Comm, expected: int) -> None:
    assert gradient_bytes(SHAPES, options) == expected


@pytest.mark.parametrize(
    ("options", "hosts", "processes", "gradients"),
    [
        (Comm(), 2, 1, 1.0),
        (Comm(), 8, 1, 1.75),
        (Comm(), 2, 4, 1.75),
        (Comm(hierarchical=True), 2, 4, 1.0),  # what one process a host would send
        # Half of what each of a host's two ranks has leaves the host; then sums go round all four.
        (Comm(wire="int8"), 2, 2, 1 + 0.75),
    ],
)
def test_what_a_host_sends_follows_from_the_ring(
    options: Comm, hosts: int, processes: int, gradients: float
) -> None:
    once = gradient_bytes(SHAPES, options)
    assert sent_bytes(SHAPES, options, hosts, processes) == pytest.approx(gradients * once)


def test_a_tasks_shapes_are_known_without_its_values_and_frozen_ones_are_not_sent() -> None:
    with torch.device("meta"):
        shapes = shapes_of(tasks.get(TASK).build_model())
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    assert sum(torch.Size(shape).numel() for shape in shapes) == tasks.get(TASK).parameters
    model[0].requires_grad_(False)
    assert shapes_of(model) == [(2, 5), (2,)]


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

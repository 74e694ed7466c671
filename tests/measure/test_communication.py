"""Wire formats learn what fp32 learns, within noise."""

import subprocess
import sys
from statistics import mean

import pytest
from refusal import check_refused_command

from gallery_lib.config import ConvergenceConfig
from gallery_lib.measure.communication import convergence
from gallery_lib.measure.communication.convergence import FORMATS, FP32, Scores


def test_noise_is_two_standard_errors_of_a_difference_of_means_or_half_a_percent() -> None:
    expected = 2 * 0.02582 * (2 / 4) ** 0.5
    assert Scores({FP32: [0.90, 0.92, 0.94, 0.96]}).noise == pytest.approx(expected, rel=1e-3)
    assert Scores({FP32: [0.8, 0.8]}).noise == pytest.approx(0.004)


@pytest.mark.slow
def test_one_process_is_refused() -> None:
    module = [sys.executable, "-m", "gallery_lib.measure.communication.convergence"]
    done = subprocess.run(module, capture_output=True, text=True)
    check_refused_command(done.returncode, done.stderr, "one process", "start two or more")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.several_cores
def test_wire_formats_learn_what_fp32_learns() -> None:
    scores = convergence.measured(ConvergenceConfig(seeds=3))
    assert mean(scores.by_format[FP32]) > 0.9
    for wire in FORMATS:
        assert scores.verdict(wire) in ("within noise", "better"), scores

"""The fake device: right programs give right values in every order, and wrong ones are noticed."""

from __future__ import annotations

import pytest
import tiny_task
from fake_gpu.running import ROOT, code_on_ranks, pytest_on_device

from gallery_lib.measure.replay import read_timeline


def in_orders(*drawn: int) -> pytest.MarkDecorator:
    """Return a parametrisation with orders of the device's work; CI runs the latest."""
    others = ("early", *(f"random:{seed}" for seed in drawn))
    marked = (pytest.param(order, marks=pytest.mark.thorough) for order in others)
    return pytest.mark.parametrize("order", ["late", *marked])


@pytest.mark.slow
@in_orders(1, 2, 4, 5, 6)
def test_what_runs_inside(order):
    """One task of the gallery trains here; thorough tests have the others."""
    names = ("streams", "loader", "steps", "graphs", "training")
    files = [f"tests/fake_gpu/inside_{name}.py" for name in names]
    tasks = ("-k", "not inside_training or tts_angular")
    pytest_on_device(*files, *tasks, order=order, devices=2)


@pytest.mark.slow
@in_orders()
def test_the_tests_for_a_gpu_pass(order):
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text() and path.parent.name != "fake_gpu"
    ]
    assert files
    pytest_on_device("-m", "gpu", *files, order=order)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_tasks_train_on_it_as_on_the_cpu():
    pytest_on_device("tests/fake_gpu/inside_training.py", "-k", "not tts_angular")


@pytest.mark.slow
@in_orders(5)
def test_two_ranks_average_their_gradients(order):
    printed = code_on_ranks("tests/fake_gpu/inside_ranks.py", ranks=2, order=order)
    assert "int8: relative error" in printed and "FAILED" not in printed


@pytest.mark.slow
def test_two_ranks_record_when_their_gradients_are_ready(tmp_path):
    file = tmp_path / "timeline.json"
    printed = code_on_ranks(
        "tests/fake_gpu/inside_timeline.py", 2, arguments=(str(file), str(tmp_path / "run"))
    )
    assert "world size 2, 2 × Fake H100" in printed
    timeline = read_timeline(file)
    model = dict(tiny_task.build_model().named_parameters())
    assert timeline.steps == 3 and timeline.environment["device"] == "2 × Fake H100"
    assert {one.parameter: one.shape for one in timeline.gradients} == {
        name: tuple(parameter.shape) for name, parameter in model.items()
    }
    ready = [one.ready_seconds for one in timeline.gradients]
    assert ready[0] > 0 and ready == sorted(ready) and ready[-1] <= timeline.backward_seconds
    assert {timeline.gradients[0].parameter, timeline.gradients[1].parameter} == {
        "6.weight", "6.bias"
    }  # fmt: skip
    assert timeline.forward_seconds > 0 and timeline.optimizer_seconds > 0

"""The fake device: right programs give right values in every order, and wrong ones are noticed."""

from __future__ import annotations

import pytest
import tiny_task
from fake_gpu.running import code_on_ranks, pytest_on_device

from gallery_lib.measure.replay import read_timeline

ORDERS = ("late", pytest.param("early", marks=pytest.mark.thorough))
"""Orders in which the device does what was queued; continuous integration runs the latest."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [*ORDERS, *(pytest.param(f"random:{seed}", marks=pytest.mark.thorough) for seed in (1, 2))],
)
def test_the_device_brings_out_what_a_program_forgot(order):
    pytest_on_device("tests/fake_gpu/inside_streams.py", order=order, devices=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", ["tts_angular", pytest.param("not tts_angular", marks=pytest.mark.thorough)]
)
def test_the_tasks_train_on_it_as_on_the_cpu(names):
    pytest_on_device("tests/fake_gpu/inside_training.py", "-k", names)


@pytest.mark.slow
@pytest.mark.parametrize("order", [*ORDERS, pytest.param("random:4", marks=pytest.mark.thorough)])
def test_batches_arrive_whole(order):
    pytest_on_device("tests/fake_gpu/inside_loader.py", order=order)


@pytest.mark.slow
@pytest.mark.parametrize("order", [*ORDERS, pytest.param("random:5", marks=pytest.mark.thorough)])
def test_two_ranks_average_their_gradients(order):
    printed = code_on_ranks("tests/fake_gpu/inside_ranks.py", ranks=2, order=order)
    assert "int8: relative error" in printed and "FAILED" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("order", [*ORDERS, pytest.param("random:6", marks=pytest.mark.thorough)])
def test_a_step_with_own_kernels_is_right(order):
    pytest_on_device("tests/fake_gpu/inside_steps.py", order=order, devices=2)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_captured_models_train_as_eager_ones(order):
    pytest_on_device("tests/fake_gpu/inside_graphs.py", order=order)


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

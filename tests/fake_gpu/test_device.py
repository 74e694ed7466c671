"""The fake device: right programs give right values in every order, and wrong ones are noticed."""

from __future__ import annotations

import pytest
from fake_gpu.running import code_on_ranks, pytest_on_device


@pytest.mark.slow
@pytest.mark.parametrize("order", ["late", "early", "random:1", "random:2"])
def test_the_device_brings_out_what_a_program_forgot(order):
    pytest_on_device("tests/fake_gpu/inside_streams.py", order=order, devices=2)


@pytest.mark.slow
def test_the_tasks_train_on_it_as_on_the_cpu():
    pytest_on_device("tests/fake_gpu/inside_training.py")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["late", "early", "random:4"])
def test_batches_arrive_whole(order):
    pytest_on_device("tests/fake_gpu/inside_loader.py", order=order)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["late", "early", "random:5"])
def test_two_ranks_average_their_gradients(order):
    printed = code_on_ranks("tests/fake_gpu/inside_ranks.py", ranks=2, order=order)
    assert "int8: relative error" in printed and "FAILED" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("order", ["late", "early", "random:6"])
def test_a_step_with_own_kernels_is_right(order):
    pytest_on_device("tests/fake_gpu/inside_steps.py", order=order, devices=2)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["late", "early"])
def test_captured_models_train_as_eager_ones(order):
    pytest_on_device("tests/fake_gpu/inside_graphs.py", order=order)

"""The fake device: right programs give the same values in every order, and wrong ones are noticed."""

from __future__ import annotations

import pytest
from fake_gpu.running import pytest_on_device


@pytest.mark.slow
@pytest.mark.parametrize("order", ["late", "early", "random:1", "random:2"])
def test_the_device_brings_out_what_a_program_forgot(order):
    pytest_on_device("tests/fake_gpu/inside_streams.py", order=order, devices=2)

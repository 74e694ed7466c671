"""Bytes of gradients on the wire, counted by hand for shapes that are small enough."""

from __future__ import annotations

import pytest
import torch

from gallery_lib import tasks
from gallery_lib.config import Comm
from gallery_lib.measure.communication.bytes_sent import gradient_bytes, sent_bytes, shapes_of

SHAPES = [(300, 200), (200,), (8, 3, 2, 2)]
"""Shapes of 60 000, 200 and 96 values."""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Comm(), 4 * 60_296),
        (Comm(wire="bf16"), 2 * 60_296),
        (Comm(wire="fp16"), 2 * 60_296),
        # 236 scales of 4 bytes, and codes, filled up to a multiple of 16.
        (
            Comm(wire="int8"),
            944 + 60_304,
        ),
        # [8, 12] is still smaller as two matrices.
        (
            Comm(wire="powersgd", powersgd_rank=4),
            4 * (4 * 500 + 200 + 4 * (8 + 12)),
        ),
        # With 8 columns it is not.
        (
            Comm(wire="powersgd", powersgd_rank=8),
            4 * (8 * 500 + 200 + 96),
        ),
    ],
)
def test_each_format_takes_what_it_is_made_of(options: Comm, expected: int) -> None:
    assert gradient_bytes(SHAPES, options) == expected


def test_over_two_hosts_each_sends_all_gradients_once_and_over_more_hosts_nearly_twice() -> None:
    all_gradients = gradient_bytes(SHAPES, Comm())
    assert sent_bytes(SHAPES, Comm(), hosts=2) == all_gradients
    assert sent_bytes(SHAPES, Comm(), hosts=8) == pytest.approx(1.75 * all_gradients)


def test_hierarchical_averaging_sends_what_one_process_a_host_would() -> None:
    flat, hierarchical = (
        sent_bytes(SHAPES, Comm(hierarchical=value), hosts=2, processes=4)
        for value in (False, True)
    )
    assert flat == pytest.approx(1.75 * gradient_bytes(SHAPES, Comm()))
    assert hierarchical == sent_bytes(SHAPES, Comm(), hosts=2)


def test_int8_of_several_processes_a_host_goes_from_each_to_each_other_host() -> None:
    """2 × 2 ranks: half of what each of a host's two ranks has leaves the host.

    Then sums go round all four.
    """
    assert sent_bytes(SHAPES, Comm(wire="int8"), hosts=2, processes=2) == pytest.approx(
        (1 + 0.75) * gradient_bytes(SHAPES, Comm(wire="int8"))
    )


def test_frozen_parameters_are_not_sent_and_values_are_not_needed() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    model[0].requires_grad_(False)
    assert shapes_of(model) == [(2, 5), (2,)]


@pytest.mark.parametrize("name", ["resnet50", "tts_angular"])
def test_a_tasks_shapes_are_known_without_its_values(name: str) -> None:
    task = tasks.get(name)
    with torch.device("meta"):
        shapes = shapes_of(task.build_model())
    assert sum(torch.Size(shape).numel() for shape in shapes) == task.parameters

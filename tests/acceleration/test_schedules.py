"""A scheduler that was built for the undivided loader is named, on two processes alone."""

from collections.abc import Iterator

import pytest
from on_ranks import twins
from ranks import Ranks

pytestmark = [pytest.mark.slow, pytest.mark.several_cores]


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(processes=2, hosts=1) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("kind", "batches", "options", "words"),
    [
        ("OneCycleLR", 10, {"max_lr": 0.1, "total_steps": 30}, "Build it with 15 steps"),
        ("CosineAnnealingLR", 10, {"T_max": 10}, "ends at 50%. Build it with 5 steps"),
        ("LinearLR", 7, {"total_iters": 14}, "takes 4 of 7 batches"),
        ("OneCycleLR", 10, {"max_lr": 0.1, "total_steps": 15}, None),
        ("ExponentialLR", 10, {"gamma": 0.9}, None),
    ],
)
def test_steps_of_the_undivided_loader_are_named(
    two: Ranks, kind: str, batches: int, options: dict[str, float], words: str | None
) -> None:
    for said in two.call("twins.schedule_note", kind, batches, options):
        assert (words is None and said is None) or words in said


def test_one_process_takes_all_batches() -> None:
    assert twins.schedule_note("OneCycleLR", 10, {"max_lr": 0.1, "total_steps": 30}) is None

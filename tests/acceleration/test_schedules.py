"""A scheduler that was built for the undivided loader is named, on two processes alone."""

from collections.abc import Iterator

import pytest
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
    answers = two.call("twins.schedule_note", kind, batches, options)
    for rank, (note, said) in enumerate(answers):
        assert (words is None and note is None) or words in note
        assert len(said) == (0 if rank else 1 + bool(note)), said  # rank 0 alone says what was done

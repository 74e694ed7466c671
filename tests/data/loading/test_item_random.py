"""An item's random numbers are those of a fresh generator with its key and counter.

It does not matter what was drawn before.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gallery_lib.data.loading.item_random import of_item


@pytest.mark.parametrize(
    ("seed", "epoch", "index"), [(0, 0, 0), (3, 4, 5), (2**63, 7, 10**9), (2**100 + 1, 0, 2)]
)
def test_an_item_has_the_numbers_of_a_generator_of_its_own(
    seed: int, epoch: int, index: int
) -> None:
    of_item(1, 2, 3).integers(10, size=3)  # half a word stays behind
    found = of_item(seed, epoch, index)
    fresh = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, epoch, index]))
    for draw in (
        lambda rng: rng.random(9),
        lambda rng: rng.integers(100, size=5),
        lambda rng: rng.permutation(20),
    ):
        np.testing.assert_array_equal(draw(found), draw(fresh))


def test_threads_do_not_disturb_one_another() -> None:
    expected = of_item(0, 0, 1).random(4)
    mine = of_item(0, 0, 1)
    thread = threading.Thread(target=lambda: of_item(9, 9, 9).random(100))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(mine.random(4), expected)

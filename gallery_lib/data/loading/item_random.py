"""Random numbers of one item of a data set, which depend only on (seed, epoch, index)."""

from __future__ import annotations

import threading

import numpy as np


class _Generator(threading.local):
    """Random generator of one thread; each item sets its key and counter anew.

    Making a generator asks the system for entropy, which takes longer.
    """

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.state = self.bits.state  # as it is before the first number
        self.generator = np.random.Generator(self.bits)


_of_thread = _Generator()


def of_item(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the generator of an item: the same in any worker, any order and any resumed run.

    The generator is valid until the thread asks for its next one.
    """
    state = _of_thread.state["state"]
    state["key"][:] = seed % 2**64, (seed >> 64) % 2**64
    state["counter"][:] = 0, 0, epoch, index
    _of_thread.bits.state = _of_thread.state
    return _of_thread.generator

"""Count the backward passes whose gradients were averaged over the ranks.

The number is the same on all ranks at the same line of a training, whatever one of them does alone
in between. So it names a pass through the data on all ranks without a message. A thread that reads
ahead is at no line of the training: it meets another number on each rank.
"""

from __future__ import annotations

import threading

_count = 0
_local = 0
_trainer = 0


def note() -> None:
    """Count a backward pass whose gradients are being averaged."""
    global _count, _local
    _count, _local = _count + 1, 0


def note_local() -> None:
    """Count a call of the model whose gradients are accumulated without being averaged."""
    global _local
    _local += 1


def place() -> tuple[int, ...]:
    """Return the line of the training: averaged backward passes, and calls since the last one.

    The latter are those whose gradients are accumulated; without any, there is one number.
    """
    return (_count, _local) if _local else (_count,)


def trains_here() -> None:
    """Note that this thread calls the model in a training."""
    global _trainer
    _trainer = threading.get_ident()


def trained_elsewhere() -> bool:
    """Return whether another thread than this one trains."""
    return _trainer not in (0, threading.get_ident())

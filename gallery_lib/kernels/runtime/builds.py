"""Observation of builds: observers learn when own kernels in C++ or CUDA are being built.

A build takes seconds where the kernels are not on disk yet, so observers can tell whoever waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

_observers: list[tuple[Callable[[], None], Callable[[], None]]] = []


@contextlib.contextmanager
def observed(began: Callable[[], None], ended: Callable[[], None]) -> Iterator[None]:
    """Call `began` and `ended` around each build while the body runs."""
    _observers.append((began, ended))
    try:
        yield
    finally:
        _observers.remove((began, ended))


@contextlib.contextmanager
def under_way() -> Iterator[None]:
    """Tell every observer that a build begins, and that it ends with the `with` block."""
    observers = list(_observers)
    for began, _ in observers:
        began()
    try:
        yield
    finally:
        for _, ended in observers:
            ended()

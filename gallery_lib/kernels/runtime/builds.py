"""Tells who waits when kernels of ours, in C++ or CUDA, are being built, which takes seconds where they are not on disk yet."""

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
    """Tell every observer when a build of own kernels begins, which is the `with` block, and when it ends."""
    observers = list(_observers)
    for began, _ in observers:
        began()
    try:
        yield
    finally:
        for _, ended in observers:
            ended()

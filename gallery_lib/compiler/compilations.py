"""Tells when torch begins to compile a graph and when it is done, of forward and backward passes alike, in any backend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def observed(began: Callable[[], None], ended: Callable[[], None]) -> Iterator[None]:
    """Call `began` and `ended` around each compilation while the body runs: Dynamo's own callbacks, which cost a call no time."""
    from torch._dynamo.callback import callback_handler

    def on_start(*arguments: Any) -> None:
        began()

    def on_end(*arguments: Any) -> None:
        ended()

    callback_handler.register_start_callback(on_start)
    callback_handler.register_end_callback(on_end)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # torch._dynamo.reset() has removed them
            callback_handler.remove_start_callback(on_start)
            callback_handler.remove_end_callback(on_end)

"""Observation of compilation: when torch compiles a graph, and when own kernels are built.

A graph is one of a forward or a backward pass, in any backend of torch.compile. Dynamo's own
callbacks report it, which cost a call no time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from gallery_lib.kernels.runtime import kept_code


@contextlib.contextmanager
def observed(
    graph_began: Callable[[], None], build_began: Callable[[], None], ended: Callable[[], None]
) -> Iterator[None]:
    """Call `graph_began` or `build_began`, and `ended`, around each compilation in the body."""
    from torch._dynamo.callback import callback_handler  # here, since the import takes a second

    def on_start(*arguments: Any) -> None:
        graph_began()

    def on_end(*arguments: Any) -> None:
        ended()

    callback_handler.register_start_callback(on_start)
    callback_handler.register_end_callback(on_end)
    try:
        with kept_code.observed(build_began, ended):
            yield
    finally:
        with contextlib.suppress(ValueError):  # torch._dynamo.reset() has removed them
            callback_handler.remove_start_callback(on_start)
            callback_handler.remove_end_callback(on_end)

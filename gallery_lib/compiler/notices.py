"""Messages about compilation: that it is under way, and where it had to break the graph.

A compiled model compiles at its first call, for a minute or more, in silence. At a graph break
Dynamo cannot follow the code (a branch on a value, say). It then compiles the pieces and runs the
rest eagerly, in silence too. The messages announce the wait when it begins, and the graph breaks
when they are known, once per model.
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

from torch import nn

from gallery_lib.comm import process_group
from gallery_lib.compiler.calls import compiled_call, set_compiled
from gallery_lib.console.progress import note

PATIENCE_SECONDS = 2.0
"""A first call that took less than this came from the cache, and is not worth a line."""


def _breaks() -> dict[str, int]:
    """Return the graph breaks that Dynamo has counted in this process so far, by reason."""
    from torch._dynamo.utils import counters

    # Newer releases count the reasons as `unimplemented`, older ones as `graph_break`.
    return {**counters["unimplemented"], **counters["graph_break"]}


def _graphs() -> int:
    """Return how many graphs Dynamo has made in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def say(message: str) -> None:
    """Print a line about the compiler, on rank 0 alone."""
    if process_group.rank() == 0:
        note(message)


def announce_first_call(model: nn.Module, done: MutableMapping[str, str]) -> None:
    """Make `model`, compiled in place, announce what its first call does.

    The call adds its graph breaks to `done["graph breaks"]`, and says in `done["compiler"]` where
    nothing was compiled.
    """
    compiled: Any = compiled_call(model)
    name = type(model).__name__

    def first_call(*args: Any, **kwargs: Any) -> Any:
        before, graphs, began = _breaks(), _graphs(), time.monotonic()
        say(f"compiling {name}; later starts take it from the cache")
        result = compiled(*args, **kwargs)
        if compiled_call(model) is first_call:
            set_compiled(model, compiled)
        seconds = time.monotonic() - began
        if _graphs() == graphs:
            done["compiler"] = f"none: the compiler made no graph of {name}"
            say(f"{name} runs as it is: the compiler made no graph of it")
        breaks = {
            reason: count - before.get(reason, 0)
            for reason, count in _breaks().items()
            if count > before.get(reason, 0)
        }
        if breaks:
            reason = next(iter(breaks)).strip().splitlines()[0]
            done["graph breaks"] = f"{sum(breaks.values())}: {reason}" + (
                " and others" if len(breaks) > 1 else ""
            )
        if seconds > PATIENCE_SECONDS:
            say(f"compiled {name}'s forward pass in {seconds:.0f} s")
        if breaks:
            say(
                f"{name} is not one graph; the parts between the breaks are compiled: "
                f"{done['graph breaks']}"
            )
        return result

    set_compiled(model, first_call)

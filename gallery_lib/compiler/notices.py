"""Messages about compilation: that it is under way, and where it had to break the graph.

A compiled model compiles at its first call, for a minute or more, in silence. At a graph break
Dynamo cannot follow the code (a branch on a value, say). It then compiles the pieces and runs the
rest eagerly, in silence too. The messages announce the wait when it begins, and the graph breaks
when they are known, once per model.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from torch import nn

from gallery_lib.comm import process_group
from gallery_lib.compiler import recompiles
from gallery_lib.compiler.calls import compiled_call, set_compiled
from gallery_lib.kernels.runtime import kept_code
from gallery_lib.system.processes import tell


@contextlib.contextmanager
def observed(
    graph_began: Callable[[], None], build_began: Callable[[], None], ended: Callable[[], None]
) -> Iterator[None]:
    """Call `graph_began` or `build_began`, and `ended`, around each compilation in the body.

    A graph is one of a forward or a backward pass, in any backend of torch.compile; what is built
    are own kernels.
    """
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


def _breaks() -> Counter[str]:
    """Return the graph breaks that Dynamo has counted in this process so far, by reason."""
    from torch._dynamo.utils import counters

    # Newer releases count the reasons as `unimplemented`, older ones as `graph_break`.
    return Counter({**counters["unimplemented"], **counters["graph_break"]})


def _line_of_break() -> str:
    """Return the user's line at which Dynamo broke a graph last, as ` (FILE:LINE)`."""
    from torch._dynamo.utils import graph_break_reasons

    stack = graph_break_reasons[-1].user_stack if graph_break_reasons else ()
    return f" ({stack[-1].filename}:{stack[-1].lineno})" if stack else ""


def _graphs() -> int:
    """Return how many graphs Dynamo has made in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def announce_first_call(model: nn.Module, done: MutableMapping[str, str]) -> None:
    """Make `model`, compiled in place, announce what its first call does, on rank 0 alone.

    The call adds its graph breaks to `done["graph breaks"]`, and says in `done["compiler"]` where
    nothing was compiled.
    """
    compiled: Any = compiled_call(model)
    name = type(model).__name__
    say = tell if process_group.rank() == 0 else (lambda message: None)

    def first_call(*args: Any, **kwargs: Any) -> Any:
        recompiles.watch(lambda line: say(f"{name}: {line}"))
        before, graphs = _breaks(), _graphs()
        say(f"compiling {name}; later starts take it from the cache")
        result = compiled(*args, **kwargs)
        if compiled_call(model) is first_call:
            set_compiled(model, compiled)
        if _graphs() == graphs:
            done["compiler"] = f"none: the compiler made no graph of {name}"
            say(f"{name} runs as it is: the compiler made no graph of it")
        if breaks := _breaks() - before:
            reason = next(iter(breaks)).strip().splitlines()[0]
            others = " and others" if len(breaks) > 1 else ""
            done["graph breaks"] = f"{breaks.total()}: {reason}{_line_of_break()}{others}"
            say(
                f"{name} is not one graph; the parts between the breaks are compiled: "
                f"{done['graph breaks']}"
            )
        return result

    set_compiled(model, first_call)

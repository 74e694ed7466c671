"""Backward passes that may keep their graph (`retain_graph=True`), whatever came before them.

By default a compiled backward pass may write over what the forward pass has kept ("donated
buffers"). torch then refuses a backward pass that shall keep its graph, unless it is the first one
since the model was compiled and its code was not in the cache. `allow()` switches that off.

The setting is not in the key of Inductor's cache, so that code which writes over what is to be kept
would come from there, and gradients be wrong (benchmarks/notes/torch-defects.md). `KeptGraphs` puts
it into the key.
"""

from __future__ import annotations

from typing import Any

from torch import fx
from torch._functorch import config as functorch_config
from torch._inductor.custom_graph_pass import CustomGraphPass


def allow() -> None:
    """Let backward passes of compiled models keep their graphs, in the whole process."""
    functorch_config.donated_buffer = False


class KeptGraphs(CustomGraphPass):
    """Pass of Inductor that changes nothing, and has in its key whether graphs may be kept."""

    def __call__(self, graph: fx.Graph) -> None:
        """Leave `graph` as it is."""

    def uuid(self) -> Any:
        """Return what torch's setting is while code is generated."""
        return "donated buffers" if functorch_config.donated_buffer else "no donated buffers"

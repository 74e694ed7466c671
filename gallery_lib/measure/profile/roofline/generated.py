"""Kernels that Inductor generates for the CPU: bytes by its own estimate, and a name in profiles.

Inductor's scheduler knows which buffers a fused loop reads and writes. `recorded()` notes that at
the moment a kernel's source is defined, and wraps the loaded kernel, so that each call is counted
and has a name in torch's profiler. The C++ code stays as it is, and comes from the cache where it
was compiled before. Lowering has to happen for that, so the caches of lowered graphs must be off:
`VARIABLES` has them off in a process.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gallery_lib.measure.profile.roofline.counts import Operation, Work

VARIABLES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
"""Environment of a process in which every graph is lowered anew."""

PREFIX = "generated::"


class Kernels:
    """The generated kernels of a process: what a call of each does, and how often it was called."""

    def __init__(self) -> None:
        self.one_call: dict[str, Work] = {}
        self.calls: dict[str, int] = {}
        self._pending: dict[str, Work] = {}
        self._graphs = 0

    def work(self) -> dict[Operation, Work]:
        """Return the work of the calls since `calls` was cleared."""
        return {
            Operation(name): Work(
                calls, calls * one.bytes, calls * one.flops, one.dtype if one.flops else None
            )
            for name, calls in self.calls.items()
            for one in [self.one_call[name]]
        }

    def defined(self, name: str, nodes: Sequence[Any]) -> None:
        """Note what a kernel does, whose source has just been generated from these nodes."""
        self._pending[name] = _work_of(nodes)

    def loaded(self, scope: dict[str, Any]) -> None:
        """Wrap the kernels among the names of a generated module."""
        self._graphs += 1
        for name, one in self._pending.items():
            if callable(scope.get(name)):
                label = f"{PREFIX}{name} (graph {self._graphs})"
                self.one_call[label] = one
                scope[name] = self._wrapped(label, scope[name])
        self._pending.clear()

    def _wrapped(self, label: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        from torch._C._profiler import _RecordFunctionFast

        def call(*args: Any) -> Any:
            self.calls[label] = self.calls.get(label, 0) + 1
            with _RecordFunctionFast(label):
                return kernel(*args)

        return call


def _work_of(nodes: Sequence[Any]) -> Work:
    """Return the work of one call of a kernel.

    A kernel consists of one or more fused loops. Each reads its inputs and writes its outputs once;
    what only the nodes of one loop use stays in registers.
    """
    from torch._inductor.virtualized import V

    wanted = {node.get_name() for node in nodes}
    work = Work(calls=1)
    for loop in V.graph.scheduler.nodes:
        inside = list(loop.get_nodes())
        if wanted.isdisjoint(node.get_name() for node in inside):
            continue
        work.bytes += int(loop.get_read_write_buffers_sizes())
        if templates := [node for node in inside if node.is_template()]:
            work.flops += int(loop.estimate_flops() or 0)
            ir_node: Any = templates[0].node
            work.dtype = str(ir_node.get_dtype()).removeprefix("torch.")
    return work


@contextlib.contextmanager
def recorded() -> Iterator[Kernels]:
    """Context: record the kernels that Inductor generates for the CPU."""
    from torch._inductor import async_compile
    from torch._inductor.codegen import cpp

    kernels = Kernels()
    scheduling: Any = cpp.CppScheduling
    compiling: Any = async_compile.AsyncCompile
    define, wait = scheduling.define_kernel, compiling.wait

    @functools.wraps(define)
    def define_kernel(self: Any, source: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        name = define(self, source, nodes, *args, **kwargs)
        kernels.defined(name, nodes)
        return name

    @functools.wraps(wait)
    def wait_and_wrap(self: Any, scope: dict[str, Any]) -> Any:
        done = wait(self, scope)
        kernels.loaded(scope)
        return done

    scheduling.define_kernel, compiling.wait = define_kernel, wait_and_wrap
    try:
        yield kernels
    finally:
        scheduling.define_kernel, compiling.wait = define, wait

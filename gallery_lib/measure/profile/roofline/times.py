"""Seconds of each operation in a step, from torch's profiler.

An operator's time includes that of the operators it calls: `aten::convolution_backward` has the
conversions that it does itself. What no counted operator has stays with its own name, and what is
no operator is time between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

from torch.profiler import ProfilerActivity, profile

from gallery_lib.measure.profile.operator_groups import OPTIMIZER
from gallery_lib.measure.profile.roofline.counts import Operation
from gallery_lib.measure.profile.roofline.generated import PREFIX
from gallery_lib.measure.profile.roofline.result import BETWEEN

OPTIMIZER_STEP = Operation(OPTIMIZER)
_BETWEEN = Operation(BETWEEN)


def seconds_of_step(step: Callable[[], float], counted: Collection[str]) -> dict[Operation, float]:
    """Run one step on the CPU under the profiler, and return the seconds of each operation.

    Args:
        step: trains one step and returns its seconds. The optimizer's part of it is a region of
            the profiler with the name `OPTIMIZER`.
        counted: names of the operators whose work is known.
    """
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as profiler:
        seconds = step()
    times = attributed(profiler.events() or (), counted)
    times[_BETWEEN] = times.get(_BETWEEN, 0.0) + max(0.0, seconds - sum(times.values()))
    return times


def attributed(events: Iterable[Any], counted: Collection[str]) -> dict[Operation, float]:
    """Return the seconds of each operation among the profiler's events."""
    times: dict[Operation, float] = defaultdict(float)
    waiting: list[tuple[Any, Operation | None]] = [
        (event, None) for event in events if event.cpu_parent is None
    ]
    while waiting:
        event, owner = waiting.pop()
        owner = owner or _owner(event, counted)
        times[owner or _unowned(event)] += event.self_cpu_time_total / 1e6
        waiting += [(child, owner) for child in event.cpu_children]
    return dict(times)


def _owner(event: Any, counted: Collection[str]) -> Operation | None:
    """Return the operation that has the event's time and that of all events below it."""
    if event.name == OPTIMIZER:
        return OPTIMIZER_STEP
    if event.name.startswith(PREFIX):
        return Operation(event.name)
    if event.name not in counted:
        return None
    shapes = tuple(
        tuple(shape)
        for shape in event.input_shapes or ()
        if shape and all(isinstance(size, int) for size in shape)
    )
    return Operation(event.name, shapes)


def _unowned(event: Any) -> Operation:
    """Return where the time of an event goes that nothing was counted for."""
    namespace, _, name = event.name.partition("::")
    is_operator = name and namespace in ("aten", "gallery", "mkldnn", "prims", "quantized")
    return Operation(event.name) if is_operator else _BETWEEN

"""Work, times and limits of a step put together, by operation and by group of operators."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from gallery_lib.measure.profile.operator_groups import FUSED, OPTIMIZER, group_of
from gallery_lib.measure.profile.roofline.counts import Operation, Work
from gallery_lib.measure.profile.roofline.generated import PREFIX
from gallery_lib.measure.profile.roofline.result import (
    BETWEEN,
    COPIES,
    PRODUCTS,
    Limits,
    Part,
)

OWN = "own kernels"
_MERGED = {
    "batch norms": "normalisation",
    "layer norms": "normalisation",
    "copies and conversions": "data movement",
    "fills and new memory": "data movement",
}


def group_of_operation(name: str) -> str:
    """Return the group of an operation, by its name."""
    if name in (OPTIMIZER, BETWEEN):
        return name
    if name.startswith(PREFIX):
        return FUSED
    if name.startswith("gallery::"):
        return OWN
    group = group_of(name)
    if group == "convolutions":
        return f"{group}, {'backward' if 'backward' in name else 'forward'}"
    return _MERGED.get(group, group)


def settled(
    steps: Sequence[Mapping[Operation, float]], new_pages: Sequence[int]
) -> list[Mapping[Operation, float]]:
    """Return the steps that touched as few pages of memory for the first time as half of them do.

    The profiler's own memory makes some steps touch new pages. That takes milliseconds for each
    huge page, which whichever operator meets it seems to need; training by itself touches none.
    """
    usual = statistics.median_low(new_pages)
    return [step for step, pages in zip(steps, new_pages, strict=True) if pages <= usual]


def middle_of(steps: Sequence[Mapping[Operation, float]]) -> dict[Operation, float]:
    """Return the mean seconds of each operation over the middle half of the steps.

    The steps are ordered by their whole time, so that the few that something disturbed are left
    out and the rest still adds up to a step.
    """
    ordered = sorted(steps, key=lambda step: sum(step.values()))
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    operations = {operation for step in middle for operation in step}
    return {
        operation: sum(step.get(operation, 0.0) for step in middle) / len(middle)
        for operation in operations
    }


def operations(
    work: Mapping[Operation, Work], seconds: Mapping[Operation, float], limits: Limits
) -> list[Part]:
    """Return a part for each operation that was counted or timed, the most to gain first."""
    parts = []
    for operation in {**work, **seconds}:
        done = work.get(operation, Work())
        by_products, by_copies = _limit_seconds(done, limits)
        limited_by = PRODUCTS if by_products > by_copies else COPIES
        parts.append(
            Part(
                name=operation.name.removeprefix(PREFIX),
                group=group_of_operation(operation.name),
                shapes=" ".join("×".join(map(str, shape)) for shape in operation.shapes),
                calls=done.calls,
                bytes=done.bytes,
                flops=done.flops,
                seconds=seconds.get(operation, 0.0),
                limit_seconds=max(by_products, by_copies),
                limited_by=limited_by if max(by_products, by_copies) else None,
            )
        )
    return sorted(parts, key=lambda part: -part.gain)


def _limit_seconds(work: Work, limits: Limits) -> tuple[float, float]:
    """Return the seconds of the work at the rates of products and of copies."""
    by_products = 0.0
    if work.flops:
        assert work.dtype is not None
        by_products = work.flops / limits.flops_per_second[work.dtype].median
    return by_products, work.bytes / limits.copy_bytes_per_second.median


def groups(parts: Iterable[Part]) -> list[Part]:
    """Return the groups of these operations, the most seconds to gain first.

    A group's time at the limits is the sum over its operations: one that copies cannot use the time
    that another spends on products.
    """
    by_name: dict[str, list[Part]] = {}
    for part in parts:
        by_name.setdefault(part.group, []).append(part)
    return sorted((summed(name, own) for name, own in by_name.items()), key=lambda p: -p.gain)


def summed(name: str, parts: Sequence[Part]) -> Part:
    """Return parts as one, limited by what limits most of its seconds at the limits."""
    limited = {
        by: sum(part.limit_seconds for part in parts if part.limited_by == by)
        for by in (PRODUCTS, COPIES)
    }
    larger = max(limited, key=lambda by: limited[by])
    return Part(
        name=name,
        group=name,
        shapes="",
        calls=sum(part.calls for part in parts),
        bytes=sum(part.bytes for part in parts),
        flops=sum(part.flops for part in parts),
        seconds=sum(part.seconds for part in parts),
        limit_seconds=sum(limited.values()),
        limited_by=larger if limited[larger] else None,
    )

"""Work and times become groups that add up, with limits that follow from the rates."""

from __future__ import annotations

import pytest

from gallery_lib.measure.profile.operator_groups import FUSED, OPTIMIZER
from gallery_lib.measure.profile.roofline.counts import Operation, Work
from gallery_lib.measure.profile.roofline.measure import (
    OWN,
    group_of_operation,
    middle_of,
    operations,
    settled,
)
from gallery_lib.measure.profile.roofline.result import (
    BETWEEN,
    COPIES,
    PRODUCTS,
    Limits,
    Spread,
    groups,
)

LIMITS = Limits(
    {"bfloat16": Spread(2000.0, 1.0, 1.0), "float32": Spread(100.0, 1.0, 1.0)},
    Spread(10.0, 1.0, 1.0),
)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("aten::convolution", "convolutions, forward"),
        ("aten::convolution_backward", "convolutions, backward"),
        ("aten::mm", "matrix products"),
        ("aten::native_layer_norm_backward", "normalisation"),
        ("aten::_to_copy", "data movement"),
        ("aten::nll_loss_forward", "loss"),
        ("gallery::cross_entropy_gradient", OWN),
        ("generated::cpp_fused_convolution_3 (graph 1)", FUSED),
        (OPTIMIZER, OPTIMIZER),
        (BETWEEN, BETWEEN),
    ],
)
def test_an_operation_is_in_its_group(name: str, group: str) -> None:
    assert group_of_operation(name) == group


def test_the_slower_of_both_limits_holds_operator_by_operator() -> None:
    small, large = Operation("aten::mm", ((1, 1),)), Operation("aten::mm", ((9, 9),))
    work = {
        small: Work(3, 40, 100, "bfloat16"),  # 0.05 s of products, 4 s of copies
        large: Work(1, 10, 600, "float32"),  # 6 s of products, 1 s of copies
        Operation("aten::add"): Work(2, 20),
    }
    seconds = {small: 5.0, large: 8.0, Operation("aten::add"): 1.0, Operation(BETWEEN): 7.0}
    parts = {part.name + part.shapes: part for part in operations(work, seconds, LIMITS)}
    assert (parts["aten::mm1×1"].limit_seconds, parts["aten::mm1×1"].limited_by) == (4.0, COPIES)
    assert (parts["aten::mm9×9"].limit_seconds, parts["aten::mm9×9"].limited_by) == (6.0, PRODUCTS)
    assert parts["aten::add"].share == 2.0  # caches may do that
    together = groups(parts.values())
    assert [group.name for group in together] == [
        BETWEEN,  # 7 s to gain
        "matrix products",  # 3 s
        "element-wise operators",
    ]
    products = together[1]
    assert (products.seconds, products.limit_seconds, products.limited_by) == (13.0, 10.0, PRODUCTS)
    assert (products.calls, products.bytes, products.flops) == (4, 50, 700)
    assert together[0].limited_by is None and together[0].gain == 7.0
    assert sum(group.seconds for group in together) == sum(seconds.values())


def test_disturbed_steps_are_left_out_and_the_others_add_up() -> None:
    mm, add = Operation("aten::mm"), Operation("aten::add")
    steps = [{mm: 1.0, add: 1.0}, {mm: 90.0}, {mm: 2.0, add: 1.0}, {mm: 0.5}]
    assert middle_of(steps) == {mm: 1.5, add: 1.0}
    assert middle_of(steps[:1]) == steps[0]


def test_steps_that_touch_new_memory_are_left_out_however_fast_they_are() -> None:
    mm = Operation("aten::mm")
    steps = [{mm: seconds} for seconds in (1.0, 2.0, 3.0, 4.0)]
    assert settled(steps, [250, 3, 3, 90]) == steps[1:3]
    assert settled(steps, [3, 3, 3, 90]) == steps[:3]
    assert settled(steps, [3, 3, 3, 3]) == steps
    assert settled(steps[:1], [250]) == steps[:1]

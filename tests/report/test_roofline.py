"""The report of a roofline says where most is to gain, in 100 columns, and its picture shows it."""

from __future__ import annotations

import dataclasses

import pytest

from gallery_lib.measure.profile.operator_groups import FUSED, OPTIMIZER
from gallery_lib.measure.profile.roofline.combined import groups, operations
from gallery_lib.measure.profile.roofline.counts import Operation, Work
from gallery_lib.measure.profile.roofline.result import BETWEEN, Limits, Roofline, Spread
from gallery_lib.report.doctor.roofline_figure import figure, figure_text
from gallery_lib.report.doctor.roofline_text import REST, group_rows, shown_groups, text

LIMITS = Limits({"bfloat16": Spread(2e12, 1.9e12, 2.1e12)}, Spread(25e9, 24e9, 26e9))
CONVOLUTION = Operation("aten::convolution_backward", ((16, 2048, 7, 7), (16, 512, 14, 14)) * 2)
KERNEL = Operation(f"generated::cpp_fused_{'native_batch_norm_' * 5}12 (graph 2)")
WORK = {
    CONVOLUTION: Work(53, 1_000_000_000, 260_000_000_000, "bfloat16"),
    KERNEL: Work(1, 5_000_000_000),
    Operation("aten::nll_loss_forward", ((16, 1000),)): Work(1, 64_000),
    Operation(OPTIMIZER): Work(1, 700_000_000),
}
SECONDS = dict(zip(WORK, (0.3, 0.45, 0.002, 0.03), strict=True)) | {Operation(BETWEEN): 0.02}


@pytest.fixture
def roofline() -> Roofline:
    """Return a roofline as that of ResNet-50 looks like."""
    parts = operations(WORK, SECONDS, LIMITS)
    return Roofline(
        task="resnet50",
        date="2026-11-27",
        options={"amp_level": "O1", "batch_size": 16, "image_size": 224, "compiler_opt": True},
        environment={},
        versions={},
        techniques={},
        limits=LIMITS,
        step_seconds=Spread(0.8, 0.79, 0.82),
        profiled_seconds=Spread(0.802, 0.8, 0.83),
        groups=groups(parts),
        operations=parts,
    )


def test_the_table_has_the_most_to_gain_first_and_a_total(roofline: Roofline) -> None:
    header, *rows = group_rows(roofline)
    assert header[:5] == ["group of operators", "ms", "at limits", "share", "to gain"]
    assert rows[0] == [FUSED, "450.0", "200.0", "44%", "250.0", "5.00", "0", "11.1 GB/s"]
    names = [FUSED, "convolutions, backward", BETWEEN, OPTIMIZER, REST, "step"]
    assert [row[0] for row in rows] == names
    assert rows[1][1:4] == ["300.0", "130.0", "43%"]
    assert rows[1][-1] == "867 GFLOP/s"
    assert rows[-1][1:4] == ["802.0", "358.0", "45%"]
    shown = shown_groups(roofline)
    assert sum(part.seconds for part in shown) == pytest.approx(roofline.seconds)
    assert sum(part.bytes for part in shown) == sum(work.bytes for work in WORK.values())


def test_the_report_names_the_next_factor_in_a_hundred_columns(roofline: Roofline) -> None:
    report = text(roofline)
    assert max(map(len, report.splitlines())) <= 100, report
    assert f"Most to gain: {FUSED}, 250 ms of 802 ms." in report
    assert "would be 1.45× as fast; with all groups at theirs, 2.24×." in report
    assert "matrix product in bfloat16: 2.00 TFLOP/s (1.90 to 2.10)" in report
    assert "_12 (graph 2)" in report and "5,000 MB a call" in report
    assert "step: 800 ms (790 to 820)" in report


def test_the_picture_has_both_limits_a_point_with_products_and_a_bar_each(
    roofline: Roofline,
) -> None:
    plot = figure(roofline)
    left, right = plot.axes
    roof, point = left.get_lines()
    assert list(roof.get_ydata())[1:] == [2000.0, 2000.0]
    assert roof.get_xdata()[1] == pytest.approx(2e12 / 25e9)  # where both limits meet
    assert (point.get_xdata()[0], point.get_ydata()[0]) == pytest.approx((260.0, 260 / 0.3))
    assert [label.get_text() for label in right.get_yticklabels()] == [
        part.name for part in shown_groups(roofline)
    ]
    assert "FLOP per byte" in left.get_xlabel() and "GFLOP/s" in left.get_ylabel()
    assert "45%" in plot.get_suptitle()
    assert f"{FUSED} 450 ms, 44%" in figure_text(roofline)


def test_a_step_without_products_has_a_picture_too(roofline: Roofline) -> None:
    alone = [part for part in roofline.groups if not part.flops]
    plain = dataclasses.replace(roofline, groups=alone, limits=Limits({}, Spread(25e9, 1.0, 1.0)))
    assert len(figure(plain).axes) == 2
    assert "matrix product" not in text(plain)

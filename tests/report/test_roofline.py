"""The report of a roofline says where most is to gain, in 100 columns, and its picture shows it."""

import dataclasses
from pathlib import Path

import pytest
from made_roofline import WORK, made_roofline

from gallery_lib.cli.main import main
from gallery_lib.measure.roofline_result import BETWEEN, FILE, read_roofline, write_roofline
from gallery_lib.measure.step_profile import FUSED, OPTIMIZER
from gallery_lib.report.roofline import REST, group_rows, shown_groups, text


def test_the_table_has_the_most_to_gain_first_and_a_total() -> None:
    roofline = made_roofline()
    header, *rows = group_rows(roofline)
    assert header[:5] == ["group of operators", "ms", "at limits", "share", "to gain"]
    assert rows[0] == [FUSED, "450.0", "200.0", "44%", "250.0", "5.00", "0", "11.1 GB/s"]
    names = [FUSED, "convolutions, backward", BETWEEN, OPTIMIZER, REST, "step"]
    assert [row[0] for row in rows] == names
    assert [*rows[1][1:4], rows[1][-1]] == ["300.0", "130.0", "43%", "867 GFLOP/s"]
    assert rows[-1][1:4] == ["802.0", "358.0", "45%"]
    shown = shown_groups(roofline)
    assert sum(part.seconds for part in shown) == pytest.approx(roofline.seconds)
    assert sum(part.bytes for part in shown) == sum(work.bytes for work in WORK.values())


def test_a_kept_roofline_is_shown_again_and_names_the_next_factor_in_a_hundred_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roofline = made_roofline()
    write_roofline(tmp_path / FILE, roofline)
    assert read_roofline(tmp_path / FILE) == roofline
    assert main(["show", str(tmp_path)]) == 0
    report = capsys.readouterr().out
    assert report == text(roofline) + "\n"
    assert max(map(len, report.splitlines())) <= 100, report
    for said in (
        f"Most to gain: {FUSED}, 250 ms of 802 ms.",
        "would be 1.45× as fast; with all groups at theirs, 2.24×.",
        "matrix product in bfloat16: 2.00 TFLOP/s\n",
        *("_12 (graph 2)", "5,000 MB a call", "The machine was busy: ", "step: 800 ms\n"),
    ):
        assert said in report
    assert "busy" not in text(dataclasses.replace(roofline, load=None))

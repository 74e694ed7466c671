"""Figures of a sweep say what they are, show intervals, and name what was not measured.

The table beside a figure says the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic_sweep
from matplotlib.colors import to_hex

from gallery_lib.measure.replay.sweep import Sweep
from gallery_lib.measure.replay.sweep_table import TABLE, read_sweep
from gallery_lib.report import replay_plots

REPLAY = "time-dilated replay, emulated link"


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return read_sweep(synthetic_sweep.write(tmp_path) / TABLE)


def test_every_title_and_alternative_text_says_replay_and_emulated(sweep: Sweep) -> None:
    (cells,) = sweep.recordings("hf_Bert")
    for figure in (replay_plots.scatter(sweep), replay_plots.throughput(cells, sweep.hosts)):
        assert REPLAY in figure.axes[0].get_title()
    assert REPLAY in replay_plots.scatter_text(sweep) and REPLAY in replay_plots.throughput_text(
        cells, sweep.hosts
    )


def test_the_scatter_has_every_point_with_its_interval_and_a_colour_for_each_number_of_hosts(
    sweep: Sweep,
) -> None:
    bars = replay_plots.scatter(sweep).axes[0].containers
    assert [bar.get_label() for bar in bars] == ["1 host", "2 hosts", "4 hosts", "8 hosts"]
    assert [len(bar.lines[0].get_xdata()) for bar in bars] == [3, 3, 3, 2]
    assert [to_hex(bar.lines[0].get_color()).upper() for bar in bars] == list(
        replay_plots.COLOURS[:4]
    )
    points, (below, above), _ = bars[3].lines
    assert list(points.get_xdata()) == pytest.approx([1 / 2.4] * 2) and list(
        points.get_ydata()
    ) == pytest.approx([1.7] * 2)
    assert list(below.get_ydata()) == pytest.approx([1.7 * 0.95] * 2) and list(
        above.get_ydata()
    ) == pytest.approx([1.7 * 1.05] * 2)
    assert (
        "8 hosts: 2 points, ddp_acc 0.42 to 0.42, acc_ratio 1.70 to 1.70"
        in replay_plots.scatter_text(sweep)
    )


def test_the_table_of_the_scatter_has_every_point_and_what_is_missing(sweep: Sweep) -> None:
    rows = replay_plots.scatter_rows(sweep, sweep.missing(["hf_Bert", "vgg16"]))
    assert rows[2] == ["alexnet", "2", "0.83", "1.10× (1.04 to 1.16)", "faster", "views, 8 MiB"]
    assert rows[12] == ["hf_Bert", "8", "not measured", "not measured", "no reason recorded", ""]
    assert rows[-1][:3] == ["vgg16", "8", "not measured"] and "30 GiB" in rows[-1][4]
    assert len(rows) == 1 + 11 + 1 + 4


def test_the_range_is_said_and_whether_it_is_higher_where_ddp_scales_worse(sweep: Sweep) -> None:
    said = replay_plots.gains_text(sweep)
    assert "11 measurements: 1.00× (0.95 to 1.05) (alexnet, 1 host) to 1.70×" in said
    assert "gains of +0 % to +70 %. On several hosts" in said
    assert (
        "the half with the lower ddp_acc has a median acc_ratio of 1.50, the other half 1.10"
        in said
    )
    assert replay_plots.gains_rows(sweep)[2][:2] == ["2", "3"] and replay_plots.gains_rows(sweep)[
        2
    ][-3:] == ["3", "0", "0"]
    assert replay_plots.gains_rows(sweep)[1][-3:] == ["0", "3", "0"]


def test_a_model_has_two_bars_for_each_number_of_hosts_and_a_word_where_there_is_none(
    sweep: Sweep,
) -> None:
    (cells,) = sweep.recordings("hf_Bert")
    axes = replay_plots.throughput(cells, sweep.hosts).axes[0]
    assert [[bar.get_height() for bar in bars] for bars in axes.containers] == [
        pytest.approx([cell.ddp_rate for cell in cells]),
        pytest.approx([cell.chosen_rate for cell in cells]),
    ]
    assert [text.get_text() for text in axes.texts] == ["1.00×", "1.10×", "1.30×", "not measured"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "1 host",
        "2 hosts",
        "4 hosts",
        "8 hosts",
    ]
    rows = replay_plots.throughput_rows(cells, sweep.hosts, {("hf_Bert", 8): "too large"})
    assert rows[2][1:4] == [
        "24.0 ms, 5,330 samples/s",
        "21.8 ms, 5,870 samples/s",
        "1.10× (1.04 to 1.16)",
    ]
    assert rows[4] == [
        "8",
        "not measured",
        "not measured",
        "not measured",
        "too large",
        "not measured",
        "",
    ]
    assert "8 hosts: not measured" in replay_plots.throughput_text(cells, sweep.hosts)


def test_without_a_measurement_on_one_host_there_is_a_ratio_and_no_point(tmp_path: Path) -> None:
    table = [
        synthetic_sweep.cell(
            "alexnet", 2, ddp_acc=None, timeline="derived, not recorded: all times × 0.5"
        )
    ]
    sweep = read_sweep(synthetic_sweep.write(tmp_path, table) / TABLE)
    assert "2 hosts: not measured" in replay_plots.scatter_text(sweep)
    assert (
        replay_plots.scatter(sweep).axes[0].get_legend().get_texts()[1].get_text()
        == "2 hosts: not measured"
    )
    assert replay_plots.scatter_rows(sweep, {})[1][:3] == [
        "alexnet (derived timeline)",
        "2",
        "not measured on one host",
    ]
    assert (
        "derived timeline"
        in replay_plots.throughput(sweep.recordings("alexnet")[0], sweep.hosts).axes[0].get_title()
    )

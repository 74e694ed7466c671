"""Figures of a sweep say what they are and what came out, and name their points.

They show intervals, and name what was not measured. The table beside a figure says the same. What
to do with a sweep follows from its figures.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import synthetic_sweep
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from gallery_lib.measure.replay.sweep import Cell, Sweep
from gallery_lib.measure.replay.sweep_table import TABLE, read_sweep
from gallery_lib.report import replay
from gallery_lib.report.point_names import Point, name_points, outermost
from gallery_lib.report.replay.advice import advice_rows, advice_text
from gallery_lib.report.replay.gains import gains_rows, gains_text
from gallery_lib.report.replay.scatter import (
    scatter,
    scatter_rows,
    scatter_text,
    scatter_title,
)
from gallery_lib.report.replay.throughput import (
    throughput,
    throughput_rows,
    throughput_text,
    throughput_title,
)

REPLAY = "time-dilated replay, emulated link"


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return read_sweep(synthetic_sweep.write(tmp_path) / TABLE)


def test_every_title_and_alternative_text_says_replay_and_emulated(sweep: Sweep) -> None:
    (cells,) = sweep.recordings("hf_Bert")
    for figure in (scatter(sweep), throughput(cells, sweep.hosts)):
        assert REPLAY in figure.axes[0].get_title()
    assert REPLAY in scatter_text(sweep) and REPLAY in throughput_text(cells, sweep.hosts)


def test_the_scatter_has_every_point_with_its_interval_and_a_colour_for_each_number_of_hosts(
    sweep: Sweep,
) -> None:
    bars = scatter(sweep).axes[0].containers
    assert [bar.get_label() for bar in bars] == ["1 host", "2 hosts", "4 hosts", "8 hosts"]
    assert [len(bar.lines[0].get_xdata()) for bar in bars] == [3, 3, 3, 2]
    assert [to_hex(bar.lines[0].get_color()).upper() for bar in bars] == list(replay.COLOURS[:4])
    points, (below, above), _ = bars[3].lines
    assert list(points.get_xdata()) == pytest.approx([1 / 2.4] * 2) and list(
        points.get_ydata()
    ) == pytest.approx([1.7] * 2)
    assert list(below.get_ydata()) == pytest.approx([1.7 * 0.95] * 2) and list(
        above.get_ydata()
    ) == pytest.approx([1.7 * 1.05] * 2)
    assert "8 hosts: 2 points, ddp_acc 0.42 to 0.42, acc_ratio 1.70 to 1.70" in scatter_text(sweep)


def test_the_table_of_the_scatter_has_every_point_and_what_is_missing(sweep: Sweep) -> None:
    rows = scatter_rows(sweep, sweep.missing(["hf_Bert", "vgg16"]))
    assert rows[2] == ["alexnet", "2", "0.83", "1.10× (1.04 to 1.16)", "faster", "views, 8 MiB"]
    assert rows[12] == ["hf_Bert", "8", "not measured", "not measured", "no reason recorded", ""]
    assert rows[-1][:3] == ["vgg16", "8", "not measured"] and "30 GiB" in rows[-1][4]
    assert len(rows) == 1 + 11 + 1 + 4


def test_the_range_is_said_and_whether_it_is_higher_where_ddp_scales_worse(sweep: Sweep) -> None:
    said = gains_text(sweep)
    assert "11 measurements: 1.00× (0.95 to 1.05) (alexnet, 1 host) to 1.70×" in said
    assert "gains of +0 % to +70 %. On several hosts" in said
    assert (
        "the half with the lower ddp_acc has a median acc_ratio of 1.50, the other half 1.10"
        in said
    )
    assert gains_rows(sweep)[2][:2] == ["2", "3"] and gains_rows(sweep)[2][-3:] == ["3", "0", "0"]
    assert gains_rows(sweep)[1][-3:] == ["0", "3", "0"]


def test_a_model_has_two_bars_for_each_number_of_hosts_and_a_word_where_there_is_none(
    sweep: Sweep,
) -> None:
    (cells,) = sweep.recordings("hf_Bert")
    axes = throughput(cells, sweep.hosts).axes[0]
    assert [[bar.get_height() for bar in bars] for bars in axes.containers] == [
        pytest.approx([cell.ddp_rate for cell in cells]),
        pytest.approx([cell.chosen_rate for cell in cells]),
    ]
    assert [text.get_text() for text in axes.texts] == [
        *("DDP\n3,200", "DDP\n5,330", "DDP\n8,000"),
        *("tuner\n1.00×", "tuner\n1.10×", "tuner\n1.30×"),
        "not measured",
    ]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "1 host",
        "2 hosts",
        "4 hosts",
        "8 hosts",
    ]
    rows = throughput_rows(cells, sweep.hosts, {("hf_Bert", 8): "too large"})
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
    assert "8 hosts: not measured" in throughput_text(cells, sweep.hosts)


def test_without_a_measurement_on_one_host_there_is_a_ratio_and_no_point(tmp_path: Path) -> None:
    table = [
        synthetic_sweep.cell(
            "alexnet", 2, ddp_acc=None, timeline="derived, not recorded: all times × 0.5"
        )
    ]
    sweep = read_sweep(synthetic_sweep.write(tmp_path, table) / TABLE)
    assert "2 hosts: not measured" in scatter_text(sweep)
    assert scatter(sweep).axes[0].get_legend().get_texts()[1].get_text() == "2 hosts: not measured"
    assert scatter_rows(sweep, {})[1][:3] == [
        "alexnet (derived timeline)",
        "2",
        "not measured on one host",
    ]
    assert (
        "derived timeline"
        in throughput(sweep.recordings("alexnet")[0], sweep.hosts).axes[0].get_title()
    )


def swept(tmp_path: Path, *cells: Cell) -> Sweep:
    return read_sweep(synthetic_sweep.write(tmp_path, cells) / TABLE)


def without_gain(model: str, hosts: int, **changed: Any) -> Cell:
    """Return a cell where the tuner kept DDP's own strategy."""
    same = {"acc_ratio": 1.0, "acc_ratio_low": 1.0, "acc_ratio_high": 1.0, "chosen": "ddp"}
    return synthetic_sweep.cell(model, hosts, **{**same, **changed})


def test_the_title_of_the_scatter_says_where_the_tuner_gains_most_and_where_nothing(
    sweep: Sweep, tmp_path: Path
) -> None:
    first, second = scatter_title(sweep).splitlines()
    assert first == "The tuner gains up to 1.70× (alexnet, 8 hosts), and nothing on 1 host"
    assert second == REPLAY
    some = swept(
        tmp_path / "some",
        synthetic_sweep.cell("alexnet", 2),
        *(without_gain("alexnet", hosts) for hosts in (4, 8)),
    )
    assert scatter_title(some).startswith(
        "The tuner gains up to 1.10× (alexnet, 2 hosts), and nothing on 4 and 8 hosts\n"
    )
    none = swept(tmp_path / "none", *(without_gain("alexnet", hosts) for hosts in (1, 2)))
    assert scatter_title(none).splitlines()[0] == "The tuner gains nothing that is certain"


def test_the_alternative_text_ends_with_what_the_title_says(sweep: Sweep) -> None:
    (cells,) = sweep.recordings("hf_Bert")
    for text, title in (
        (scatter_text(sweep), scatter_title(sweep)),
        (throughput_text(cells, sweep.hosts), throughput_title(cells)),
    ):
        assert text.endswith(f". {title.splitlines()[0]}.")


def test_a_gain_whose_interval_holds_one_is_none(tmp_path: Path) -> None:
    unsure = swept(tmp_path, synthetic_sweep.cell("alexnet", 2, acc_ratio_low=0.98))
    assert scatter_title(unsure).startswith("The tuner gains nothing that is certain")
    assert throughput_title(unsure.cells).startswith("alexnet: 2 hosts with DDP train 1.7× as fast")
    assert "the tuner gains nothing" in throughput_title(unsure.cells)
    assert "Leave the tuner out" in advice_text(unsure)
    assert advice_rows(unsure)[1][-1] == "nowhere"


def test_the_title_of_a_model_says_what_more_hosts_and_the_tuner_gain(
    sweep: Sweep, tmp_path: Path
) -> None:
    (cells,) = sweep.recordings("hf_Bert")
    assert throughput_title(cells).splitlines() == [
        "hf_Bert: 4 hosts with DDP train 2.5× as fast as one; the tuner gains 1.30× on 4 hosts",
        REPLAY,
    ]
    alone = swept(tmp_path, without_gain("alexnet", 2, ddp_acc=None))
    assert throughput_title(alone.cells).splitlines()[0] == "alexnet: the tuner gains nothing"


def test_points_that_share_a_place_share_a_name_and_the_outermost_have_one(sweep: Sweep) -> None:
    names = [text.get_text() for text in scatter(sweep).axes[0].texts]
    assert sorted(names) == [
        "alexnet and 1 more, 8 hosts",
        "alexnet and 2 more, 1 host",
        "alexnet and 2 more, 2 hosts",
        "alexnet and 2 more, 4 hosts",
    ]


def test_names_do_not_cover_one_another_and_the_outermost_points_have_theirs() -> None:
    figure = Figure(figsize=(4, 3), layout="constrained")
    axes = figure.subplots()
    points = [Point(x / 40, (x * 17 % 40) / 40, f"point number {x}") for x in range(40)]
    axes.plot([p.x for p in points], [p.y for p in points], "o")
    axes.axhline(0.5)
    written = name_points(axes, points, line=0.5)
    assert {p.name for p in outermost(points)} <= set(written) and 4 < len(written) < 40
    assert [text.get_text() for text in axes.texts] == written
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    height = axes.transData.transform((0, 0.5))[1]
    assert not any(box.y0 < height < box.y1 for box in boxes)


def test_an_outermost_point_is_named_where_there_is_no_room() -> None:
    axes = Figure(figsize=(2, 2)).subplots()
    points = [Point(float(x), float(y), f"a long name, {x} {y}") for x in (0, 1) for y in (0, 1)]
    axes.plot([p.x for p in points], [p.y for p in points], "o")
    assert set(name_points(axes, points)) >= {p.name for p in outermost(points)}
    assert outermost([]) == []


def test_advice_names_the_models_for_which_more_hosts_pay_and_where_the_tuner_gains(
    tmp_path: Path,
) -> None:
    sweep = swept(
        tmp_path,
        *(without_gain("alexnet", 1, ddp_acc=1.0), synthetic_sweep.cell("alexnet", 2, ddp_acc=0.4)),
        *(without_gain("alexnet", 8, ddp_acc=0.3), without_gain("vgg16", 1, ddp_acc=1.0)),
        *(synthetic_sweep.cell("vgg16", 2, ddp_acc=0.3), without_gain("vgg16", 8, ddp_acc=0.13)),
    )
    text = advice_text(sweep)
    assert "With plain DDP, use more hosts for alexnet (2.4× on 8):" in text
    assert "Not 2 hosts, which are slower than one for each model." in text
    assert "Stay on one host with vgg16:" in text
    assert "Use the tuner on 2 hosts (2 of 2 gain, up to 1.10×)." in text
    assert "On 1 and 8 hosts it gains nothing that is certain" in text
    assert advice_rows(sweep)[1:] == [
        ["alexnet", "0.80×", "not measured", "2.40×", "yes", "2 hosts 1.10×"],
        ["vgg16", "0.60×", "not measured", "1.04×", "no", "2 hosts 1.10×"],
    ]


def test_advice_on_a_sweep_without_one_host_or_without_anything_says_not_measured(
    tmp_path: Path,
) -> None:
    without_one = swept(tmp_path / "several", synthetic_sweep.cell("alexnet", 2, ddp_acc=None))
    assert "Whether more hosts pay was not measured" in advice_text(without_one)
    assert advice_rows(without_one)[1][-2] == "not measured"
    assert "nothing was measured" in advice_text(swept(tmp_path / "none"))

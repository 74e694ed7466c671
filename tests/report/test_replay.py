"""Charts of a sweep say what they are and what came out, and name what was not measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import synthetic_sweep
from matplotlib.colors import to_hex

from gallery_lib.measure.replay.sweep import TABLE, Cell, Sweep, read_sweep
from gallery_lib.report import style
from gallery_lib.report.replay import REPLAY, cell_rows, model_rows, scatter, throughput


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return read_sweep(synthetic_sweep.write(tmp_path) / TABLE)


def swept(tmp_path: Path, *cells: Cell) -> Sweep:
    return read_sweep(synthetic_sweep.write(tmp_path, cells) / TABLE)


def without_gain(model: str, hosts: int, **changed: Any) -> Cell:
    """Return a cell where the tuner kept DDP's own strategy."""
    same = {"acc_ratio": 1.0, "acc_ratio_low": 1.0, "acc_ratio_high": 1.0, "chosen": "ddp"}
    return synthetic_sweep.cell(model, hosts, **{**same, **changed})


def test_the_scatter_has_every_point_with_its_interval_and_a_colour_for_each_number_of_hosts(
    sweep: Sweep,
) -> None:
    axes = scatter(sweep, {}).draw().axes[0]
    assert REPLAY in axes.get_title()
    bars = axes.containers
    assert [bar.get_label() for bar in bars] == ["1 host", "2 hosts", "4 hosts", "8 hosts"]
    assert [len(bar.lines[0].get_xdata()) for bar in bars] == [3, 3, 3, 2]
    assert [to_hex(bar.lines[0].get_color()).upper() for bar in bars] == list(style.SHADES[:4])
    points, (below, above), _ = bars[3].lines
    for line, values in (
        (points, (1 / 2.4, 1.7)),
        (below, (1 / 2.4, 1.615)),
        (above, (1 / 2.4, 1.785)),
    ):
        assert list(line.get_xdata()) == pytest.approx([values[0]] * 2)
        assert list(line.get_ydata()) == pytest.approx([values[1]] * 2)


def test_the_tables_have_every_point_the_range_by_hosts_and_what_is_missing(sweep: Sweep) -> None:
    rows = cell_rows(sweep, sweep.missing(["hf_Bert", "vgg16"]))
    assert rows[2] == ["alexnet", "2", "0.83", "1.10× (1.04 to 1.16)", "faster", "views, 8 MiB"]
    assert rows[12] == ["hf_Bert", "8", "not measured", "not measured", "no reason recorded", ""]
    assert rows[-1][:3] == ["vgg16", "8", "not measured"] and "30 GiB" in rows[-1][4]
    assert len(rows) == 1 + 11 + 1 + 4


def test_a_model_has_two_bars_for_each_number_of_hosts_and_a_word_where_there_is_none(
    sweep: Sweep,
) -> None:
    (cells,) = sweep.recordings("hf_Bert")
    chart = throughput(cells, sweep.hosts, {("hf_Bert", 8): "too large"})
    axes = chart.draw().axes[0]
    assert REPLAY in axes.get_title()
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
    assert chart.rows[2][1:4] == [
        "24.0 ms, 5,330 samples/s",
        "21.8 ms, 5,870 samples/s",
        "1.10× (1.04 to 1.16)",
    ]
    absent = "not measured"
    assert chart.rows[4] == ["8", absent, absent, absent, "too large", absent, ""]


def test_the_title_of_the_scatter_says_where_the_tuner_gains_most_and_where_nothing(
    sweep: Sweep, tmp_path: Path
) -> None:
    first, second = scatter(sweep, {}).title.splitlines()
    assert first == "The tuner gains up to 1.70× (AlexNet, 8 hosts), and nothing on 1 host"
    assert second == REPLAY
    some = swept(
        tmp_path / "some",
        synthetic_sweep.cell("alexnet", 2),
        *(without_gain("alexnet", hosts) for hosts in (4, 8)),
    )
    assert scatter(some, {}).title.startswith(
        "The tuner gains up to 1.10× (AlexNet, 2 hosts), and nothing on 4 and 8 hosts\n"
    )
    none = swept(tmp_path / "none", *(without_gain("alexnet", hosts) for hosts in (1, 2)))
    assert scatter(none, {}).title.splitlines()[0] == "The tuner gains nothing that is certain"


def test_a_gain_whose_interval_holds_one_is_none(tmp_path: Path) -> None:
    unsure = swept(tmp_path, synthetic_sweep.cell("alexnet", 2, acc_ratio_low=0.98))
    assert scatter(unsure, {}).title.startswith("The tuner gains nothing that is certain")
    assert "the tuner gains nothing" in throughput(unsure.cells, unsure.hosts, {}).title
    assert model_rows(unsure)[1][-1] == "nowhere"


def test_a_table_says_for_which_models_more_hosts_pay_and_where_the_tuner_gains(
    tmp_path: Path,
) -> None:
    sweep = swept(
        tmp_path,
        *(without_gain("alexnet", 1, ddp_acc=1.0), synthetic_sweep.cell("alexnet", 2, ddp_acc=0.4)),
        *(without_gain("alexnet", 8, ddp_acc=0.3), without_gain("vgg16", 1, ddp_acc=1.0)),
        *(synthetic_sweep.cell("vgg16", 2, ddp_acc=0.3), without_gain("vgg16", 8, ddp_acc=0.13)),
    )
    assert model_rows(sweep)[1:] == [
        ["alexnet", "0.80×", "not measured", "2.40×", "yes", "2 hosts 1.10×"],
        ["vgg16", "0.60×", "not measured", "1.04×", "no", "2 hosts 1.10×"],
    ]

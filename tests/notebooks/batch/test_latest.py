"""The newest result of each notebook: of this machine, else committed by the nearest one."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from made_comparison import ENVIRONMENT, FASTER, FIGURES, NO_DIFFERENCE, changed, comparison, write
from matplotlib.colors import to_hex

from gallery_lib.measure.bench.result import Bench, Outcome, Row, write_bench
from gallery_lib.measure.comparison.result import Comparison, Parity
from gallery_lib.notebooks.batch import latest
from gallery_lib.notebooks.batch.latest import HERE, Speedup
from gallery_lib.stats import Ratio
from gallery_lib.system.machine_load import MachineLoad, Others

TITLES = {"resnet50": "ResNet-50", "vgg16": "VGG-16", "your_model": "Your own model"}
HERE_GIT = {**ENVIRONMENT, "git": "abc"}
GAIN = comparison(FASTER, 40)


def put(folder: Path, found: Comparison, age_seconds: float, **changes: Any) -> None:
    path = write(dataclasses.replace(found, **changes), folder)
    os.utime(path, (1.8e9 - age_seconds,) * 2)


def own(folder: Path) -> dict[str, Speedup]:
    return latest.own_results(folder, TITLES, HERE_GIT)


def test_the_newest_comparison_of_a_notebook_on_one_process_counts(tmp_path: Path) -> None:
    put(tmp_path / "20261120-compare-resnet50-1p", comparison(NO_DIFFERENCE, None), 100)
    put(tmp_path / "batch" / "resnet50" / "runs" / "compare", GAIN, 50)
    put(tmp_path / "b", GAIN, 10, task="/mine/model.py:TASK")
    put(tmp_path / "c", GAIN, 10, task="/cache/cells/0a1b/Net/your_cell.py:TASK")
    put(tmp_path / "d", changed(GAIN, world_size=2), 10, task="vgg16")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "comparison.json").write_text("{")
    found = own(tmp_path)
    assert set(found) == {"resnet50", "your_model"}
    assert (found["resnet50"].ratio, found["resnet50"].machine) == (FASTER, HERE)
    assert found["resnet50"].conditions == "fp32, batch size 16, images 48 pixels high"


def test_another_machines_run_counts_only_where_there_is_none_from_here_and_is_named(
    tmp_path: Path,
) -> None:
    elsewhere = changed(comparison(NO_DIFFERENCE, None), environment={"cpu": "Another CPU"})
    put(tmp_path / "new", elsewhere, 10)
    put(tmp_path / "old", GAIN, 100)
    put(tmp_path / "other", elsewhere, 10, task="vgg16")
    found = own(tmp_path)
    assert (found["resnet50"].machine, found["vgg16"].machine) == (HERE, "2 cores of Another CPU")


def test_another_code_and_a_busy_machine_are_noted(tmp_path: Path) -> None:
    put(tmp_path / "a", changed(GAIN, environment={"git": "abc"}), 10)
    assert latest.notes(own(tmp_path).values(), "abc") == []
    load = MachineLoad(2, None, None, Others(1.5, "make", 1.5), None, {})
    put(tmp_path / "b", changed(GAIN, environment={"git": "old"}), 10, task="vgg16", load=load)
    code, busy = latest.notes(own(tmp_path).values(), "abc")
    assert "abc: ResNet-50" in code and "old: VGG-16" in code and code.endswith("Here it is abc.")
    assert busy.endswith("busy, so repeat when it is quiet: VGG-16.")


def commit(
    folder: Path, name: str = "bench-small", date: str = "2026-11-20", **environment: Any
) -> None:
    row = Row(None, **FIGURES, parity=Parity(True, []))
    outcome = Outcome(
        *("x", f"{date}T12:00:00+0000", 60.0, None, {"batch_size": 16}),
        {"eager-O1": row, "ours": row},
        [("eager-O1", "ours", 1.5, 1.4, 1.6)],
    )
    bench = Bench("bench", "", {}, {**HERE_GIT, **environment}, {}, {"resnet50": outcome})
    folder.mkdir(parents=True, exist_ok=True)
    write_bench(folder / f"{name}.json", bench)


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        ({}, {"device": "8 × A GPU"}),
        ({}, {"isa": ["avx2", "avx512f", "avx512_bf16"]}),  # this machine has no bfloat16 units
        ({"cores": 4}, {"isa": ["avx2", "avx512f"]}),
        ({"cores": 4}, {"cores": 64}),
        ({"cpu": "Another CPU"}, {"cores": 4}),
    ],
)
def test_the_machine_most_like_this_one_stands_in(
    tmp_path: Path, nearer: dict[str, Any], farther: dict[str, Any]
) -> None:
    assert latest.nearest(tmp_path, ENVIRONMENT) is None
    commit(tmp_path / "far", date="2026-11-30", **farther)
    commit(tmp_path / "near", date="2026-11-19", **nearer)
    commit(tmp_path / "near", "bench-small-2", **nearer)  # newer
    found = latest.nearest(tmp_path, ENVIRONMENT)
    assert found and (found.path.parent.name, found.path.stem) == ("near", "bench-small-2")


def test_committed_speedups_are_ours_over_eager_and_name_machine_code_and_precision(
    tmp_path: Path,
) -> None:
    commit(tmp_path / latest.PUBLISHED)
    found = latest.published(tmp_path)
    assert found is not None
    (one,) = found.speedups(TITLES).values()
    about = (one.name, one.conditions, one.machine, one.date[:10], one.in_words)
    assert about == (
        *("resnet50", "bf16 autocast, small input", "2 cores of A CPU", "2026-11-20"),
        "1.50× (1.40 to 1.60)",
    )
    assert found.described.startswith("measured on 2026-11-20 in bf16 autocast on 2 cores of A CPU")
    assert found.described.endswith("with code version abc")


def test_the_chart_has_a_bar_each_and_another_machines_is_hatched() -> None:
    where = ("fp32, batch size 16", HERE, "2026-11-20T12:00:00")
    faster = Speedup("resnet50", "ResNet-50", Ratio(1.5, 1.4, 1.6), "faster", *where)
    none = Speedup("hf_Bert", "BERT", None, "not comparable", *where)
    elsewhere = dataclasses.replace(
        faster,
        name="vgg16",
        title="VGG-16",
        ratio=Ratio(1.1, 0.9, 1.3),
        verdict="no measurable difference",
        machine="2 cores of A CPU",
    )
    chart = latest.chart([none, elsewhere, faster])
    assert [row[:2] for row in chart.rows[1:]] == [
        ["[BERT](hf_Bert.ipynb)", "not comparable"],
        ["[VGG-16](vgg16.ipynb)", "1.10× (0.90 to 1.30), no measurable difference"],
        ["[ResNet-50](resnet50.ipynb)", "1.50× (1.40 to 1.60)"],
    ]
    drawn = chart.draw()
    axes = drawn.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [1.5, 1.1]
    assert [bar.get_hatch() for bar in axes.patches] == [None, "///"]
    assert [text.get_text().strip() for text in axes.texts] == ["1.50×", "1.10×", "not comparable"]
    assert to_hex(axes.patches[1].get_facecolor()) == "#ffffff"  # hollow: not measurable
    assert "hollow" in axes.get_xlabel() and drawn.get_suptitle().endswith("another machine")
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["ResNet-50", "VGG-16", "BERT"]  # the fastest first

"""The newest result of each notebook, with this machine's own first.

Else it is what is committed of the machine nearest to this one.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from made_comparison import ENVIRONMENT, FASTER, FIGURES, NO_DIFFERENCE, changed, comparison, write

from gallery_lib.measure.bench.result import Bench, Outcome, Row, write_bench
from gallery_lib.notebooks.batch import latest
from gallery_lib.report.speedups import HERE
from gallery_lib.system.machine_load import MachineLoad, Others

TITLES = {"resnet50": "ResNet-50", "vgg16": "VGG-16", "your_model": "Your own model"}
HERE_GIT = {**ENVIRONMENT, "git": "abc"}


def put(folder: Path, found: Any, age_seconds: float) -> None:
    path = write(found, folder)
    os.utime(path, (1.8e9 - age_seconds,) * 2)


def own(folder: Path) -> dict[str, Any]:
    return latest.own_results(folder, TITLES, HERE_GIT)


def test_the_newest_of_single_runs_batches_and_comparisons_counts(tmp_path: Path) -> None:
    put(tmp_path / "20261120-compare-resnet50-1p", comparison(NO_DIFFERENCE, None), 100)
    put(tmp_path / "batch" / "resnet50" / "runs" / "compare", comparison(FASTER, 40), 50)
    put(
        tmp_path / "batch" / "vgg16" / "runs" / "compare",
        dataclasses.replace(comparison(FASTER, 40), task="vgg16"),
        200,
    )
    found = own(tmp_path)
    assert set(found) == {"resnet50", "vgg16"}
    assert (found["resnet50"].ratio, found["resnet50"].machine) == (FASTER, HERE)
    assert found["resnet50"].conditions == "fp32, batch size 16, images 48 pixels high"


def test_only_comparisons_on_one_process_of_the_gallerys_notebooks_count(tmp_path: Path) -> None:
    put(tmp_path / "a", changed(comparison(FASTER, 40), world_size=2), 10)
    put(tmp_path / "b", dataclasses.replace(comparison(FASTER, 40), task="/mine/model.py:TASK"), 10)
    put(
        tmp_path / "c",
        dataclasses.replace(comparison(FASTER, 40), task="/cache/cells/0a1b/Net/your_cell.py:TASK"),
        10,
    )
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "comparison.json").write_text("{")
    assert set(own(tmp_path)) == {"your_model"}


def test_another_machines_run_counts_only_where_there_is_none_from_here_and_is_named(
    tmp_path: Path,
) -> None:
    elsewhere = changed(comparison(NO_DIFFERENCE, None), environment={"cpu": "Another CPU"})
    put(tmp_path / "new", elsewhere, 10)
    put(tmp_path / "old", comparison(FASTER, 40), 100)
    put(tmp_path / "other", dataclasses.replace(elsewhere, task="vgg16"), 10)
    found = own(tmp_path)
    assert (found["resnet50"].machine, found["vgg16"].machine) == (HERE, "2 cores of Another CPU")


def test_the_code_that_was_measured_is_said_in_one_line_and_only_where_it_is_another(
    tmp_path: Path,
) -> None:
    put(tmp_path / "a", changed(comparison(FASTER, 40), environment={"git": "abc"}), 10)
    found = own(tmp_path)
    assert latest.code_note(found.values(), "abc") == ""
    put(
        tmp_path / "b",
        dataclasses.replace(
            changed(comparison(FASTER, 40), environment={"git": "old"}), task="vgg16"
        ),
        10,
    )
    said = latest.code_note(own(tmp_path).values(), "abc")
    assert said.startswith("Version of the code that was measured: ")
    assert "abc: ResNet-50" in said and "old: VGG-16" in said and said.endswith("Here it is abc.")


def test_figures_of_a_busy_machine_are_named(tmp_path: Path) -> None:
    put(tmp_path / "a", comparison(FASTER, 40), 10)
    assert latest.busy_note(own(tmp_path).values()) == ""
    load = MachineLoad(2, None, None, Others(1.5, "make", 1.5), None, {})
    put(tmp_path / "b", dataclasses.replace(comparison(FASTER, 40), load=load), 5)
    assert (
        latest.busy_note(own(tmp_path).values())
        == "The machine was busy, so repeat when it is quiet: ResNet-50."
    )


# --------------------------------------------------------------------------------------------------
# Committed


def commit(
    folder: Path, name: str = "bench-small", date: str = "2026-11-20", **environment: Any
) -> None:
    row = Row(None, **FIGURES, parity={"passed": True, "checks": []})
    outcome = Outcome(
        *("x", f"{date}T12:00:00+0000", 60.0, None, {"batch_size": 16}, {"copy": 1e10}),
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
        # It computes in bfloat16, and this machine does not.
        (
            {},
            {"isa": ["avx2", "avx512f", "avx512_bf16"]},
        ),
        ({"cores": 4}, {"isa": ["avx2", "avx512f"]}),
        ({"cores": 4}, {"cores": 64}),
        ({"cpu": "Another CPU"}, {"cores": 4}),
    ],
)
def test_the_machine_most_like_this_one_stands_in(
    tmp_path: Path, nearer: dict[str, Any], farther: dict[str, Any]
) -> None:
    commit(tmp_path / "far", date="2026-11-30", **farther)
    commit(tmp_path / "near", **nearer)
    found = latest.nearest(tmp_path, ENVIRONMENT)
    assert found is not None and found.path.parent.name == "near"


def test_of_two_alike_the_newer_counts(tmp_path: Path) -> None:
    assert latest.nearest(tmp_path, ENVIRONMENT) is None
    commit(tmp_path / "a", date="2026-11-21")
    commit(tmp_path / "b", date="2026-11-19")
    commit(tmp_path / "b", "bench-small-2", date="2026-11-22")
    found = latest.nearest(tmp_path, ENVIRONMENT)
    assert found is not None and found.path.name == "bench-small-2.json"


def test_committed_speedups_are_ours_over_eager_and_name_machine_code_and_precision(
    tmp_path: Path,
) -> None:
    commit(tmp_path / latest.PUBLISHED)
    found = latest.published(tmp_path)
    assert found is not None
    (one,) = found.speedups(TITLES).values()
    assert (one.name, one.conditions, one.machine, one.date[:10]) == (
        "resnet50",
        "bf16 autocast, small input",
        "2 cores of A CPU",
        "2026-11-20",
    )
    assert str(one.ratio) == "1.50× (1.40 to 1.60)"
    assert found.described.startswith(
        "measured on 2026-11-20 in bf16 autocast on 2 cores of A CPU (avx2), 16.0 GiB, no GPU"
    )
    assert found.described.endswith("with code version abc")

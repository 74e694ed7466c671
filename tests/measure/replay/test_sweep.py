"""Table of a sweep: what is read back and found, and what is refused with file and line."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic_sweep
from measure.replay.test_timeline import TIMELINE
from refusal import refused

from gallery_lib.measure.replay.sweep import (
    COLUMNS,
    SETTINGS,
    TABLE,
    Cell,
    find_sweep,
    read_sweep,
    write_sweep,
)


def test_a_table_reads_back_as_it_was_written_with_its_conditions(tmp_path: Path) -> None:
    table = [
        *synthetic_sweep.cells()[:-1],
        synthetic_sweep.cell("small", 2, ddp_acc=None, input_sizes=""),
    ]
    sweep = read_sweep(synthetic_sweep.write(tmp_path / "sweep", table) / TABLE)
    assert list(sweep.cells) == table
    assert (sweep.rate, sweep.stretches, sweep.ranks, sweep.wires, sweep.date) == (
        "10gbit",
        "8",
        2,
        "exact",
        "2026-11-22",
    )
    assert sweep.machines == table[0].replayed_on
    assert sweep.models == [*synthetic_sweep.MODELS, "small"] and sweep.hosts == [1, 2, 4, 8]


def test_what_is_missing_is_named_with_its_reason_where_that_is_known(tmp_path: Path) -> None:
    sweep = read_sweep(synthetic_sweep.write(tmp_path) / TABLE)
    missing = sweep.missing(["alexnet", "hf_Bert", "vgg16"])
    assert list(missing) == [("hf_Bert", 8), *(("vgg16", hosts) for hosts in (1, 2, 4, 8))]
    assert missing["hf_Bert", 8] == "no reason recorded" and missing["vgg16", 8].startswith(
        "vgg16 needs about 30 GiB"
    )


def test_a_sweep_may_have_been_gone_on_with_on_another_machine_with_a_larger_stretch(
    tmp_path: Path,
) -> None:
    later = {"stretch": 32.0, "replayed_on": "B"}
    table = [
        synthetic_sweep.cell("small", 1, replayed_on="A"),
        synthetic_sweep.cell("small", 2, replayed_on="A"),
        synthetic_sweep.cell("small", 8, **later),
    ]
    folder = synthetic_sweep.write(tmp_path, table, stretches={"1": 8, "2": 8, "8": 32})
    sweep = read_sweep(folder / TABLE)
    assert sweep.stretches == "8 (hosts: 1, 2); 32 (hosts: 8)"
    assert sweep.machines == "A (hosts: 1, 2); B (hosts: 8)"


def test_two_timelines_of_a_model_are_told_apart(tmp_path: Path) -> None:
    faster = [
        synthetic_sweep.cell(
            "alexnet",
            hosts,
            timeline="derived, not recorded: all times × 0.5",
            step_seconds_alone=0.009,
        )
        for hosts in (2, 1)
    ]
    sweep = read_sweep(
        synthetic_sweep.write(tmp_path, [*synthetic_sweep.cells(["alexnet"]), *faster]) / TABLE
    )
    recorded, other = sweep.recordings("alexnet")
    assert [cell.hosts for cell in recorded] == [1, 2, 4, 8] and recorded[0].is_recorded
    assert [cell.hosts for cell in other] == [1, 2] and not other[0].is_recorded


def test_a_cell_knows_its_timeline_and_its_rates() -> None:
    settings = {
        "batch_size": 8,
        "image_size": 64,
        "sequence_length": None,
        "amp_level": "O1",
        "autocast": "torch.bfloat16",
    }
    timeline = dataclasses.replace(
        TIMELINE,
        settings=settings,
        environment={"device": "cpu", "cores": 2, "cpu": "a CPU of two"},
    )
    known = {
        "model",
        "batch_size",
        "input_sizes",
        "precision",
        "device",
        "timeline",
        "gradient_bytes",
        "step_seconds_alone",
    }
    measured = {
        name: getattr(synthetic_sweep.cell("small", 4), name)
        for name in COLUMNS
        if name not in known
    }
    derived = dataclasses.replace(timeline, origin="derived, not recorded: all times × 1")
    cell = Cell.of(derived, **measured)
    assert (cell.input_sizes, cell.precision, cell.device) == (
        "image_size 64",
        "O1 (bfloat16)",
        "2 cores of a CPU of two",
    )
    assert not cell.is_recorded and cell.step_seconds_alone == TIMELINE.step_seconds
    assert cell.ddp_rate == pytest.approx(4 * 2 * 8 / cell.ddp_step_seconds)
    assert cell.chosen_rate / cell.ddp_rate == pytest.approx(cell.acc_ratio)
    assert (TIMELINE.input_sizes, TIMELINE.precision, TIMELINE.device) == (
        "",
        "not recorded",
        "a CPU",
    )
    assert (
        dataclasses.replace(
            TIMELINE, settings={**settings, "amp_level": "O0", "autocast": "None"}
        ).precision
        == "O0 (fp32)"
    )


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("model,hosts", "model,machines", "its columns are not model, hosts"),
        ("resnet50,2,", "resnet50,two,", "'two'"),
        ("resnet50,2,", "resnet50,0,", "hosts='0' is not above 0"),
        ("resnet50,2,", "resnet50,2,2,", "'10gbit'"),
        ("1.1,1.045,1.155", "nan,1.045,1.155", "acc_ratio='nan'"),
        ("0.02,1.0,0.95", '0.02,"1.0,0.95', "',' expected after"),
    ],
)
def test_a_damaged_table_is_refused_with_what_to_do(
    tmp_path: Path, before: str, after: str, problem: str
) -> None:
    table = [
        synthetic_sweep.cell(model, n, chosen_step_seconds=0.02)
        for model in ("alexnet", "resnet50")
        for n in (1, 2, 4, 8)
    ]
    path = synthetic_sweep.write(tmp_path, table) / TABLE
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with refused(path, path, problem, "Begin the sweep again"):
        read_sweep(path)


def test_half_a_line_no_text_and_figures_without_conditions_are_refused(tmp_path: Path) -> None:
    path = synthetic_sweep.write(tmp_path) / TABLE
    whole = path.read_text()
    for cut in (1 + len(whole.splitlines()[-1].split(",")[-1]) + 1, 40):
        path.write_text(whole[:-cut])
        with refused(path, "ends before"):
            read_sweep(path)
    path.write_bytes(b"\xff\xfe\x00")
    with refused(path, "UnicodeDecodeError"):
        read_sweep(path)
    path.write_text(whole)
    (tmp_path / SETTINGS).write_text(json.dumps({"date": "2026-11-22"}))
    with refused(path, "KeyError", SETTINGS):
        read_sweep(path)
    (tmp_path / SETTINGS).unlink()
    with refused(path, "FileNotFoundError", SETTINGS):
        read_sweep(path)


def test_the_newest_of_all_machines_is_found_and_none_is_none(tmp_path: Path) -> None:
    assert find_sweep(tmp_path) is None
    for machine, date in (("one", "2026-11-23"), ("two", "2026-11-22")):
        (tmp_path / machine).mkdir()
        write_sweep(tmp_path / machine / TABLE, synthetic_sweep.cells())
        (tmp_path / machine / "sweep.json").write_text(
            json.dumps({**synthetic_sweep.CONDITIONS, "date": date})
        )
    found = find_sweep(tmp_path)
    assert found is not None and found.path == tmp_path / "one" / TABLE
    assert find_sweep(tmp_path / "two") == read_sweep(tmp_path / "two" / TABLE)
    with refused("sweep", tmp_path / "gone"):
        find_sweep(tmp_path / "gone")


def test_it_needs_no_torch() -> None:
    code = "import sys, gallery_lib.measure.replay.sweep; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0

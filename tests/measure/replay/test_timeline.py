"""Files of replays, timelines and tables of sweeps: what they hold, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic_sweep
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
from gallery_lib.measure.replay.timeline import Gradient, Timeline, read_timeline, write_timeline

GRADIENTS = (
    Gradient("head.bias", 3, (10,), "float32", 0.001),
    Gradient("head.weight", 2, (10, 64), "float32", 0.001),
    Gradient("body.weight", 0, (64, 3, 7, 7), "bfloat16", 0.004),
)
TIMELINE = Timeline(
    task="small",
    origin="recorded",
    settings={"batch_size": 8},
    environment={"device": "cpu", "torch": "2.15"},
    date="2026-11-22",
    steps=5,
    input_seconds=0.001,
    forward_seconds=0.002,
    backward_seconds=0.005,
    optimizer_seconds=0.0005,
    gradients=GRADIENTS,
)


def test_a_timeline_reads_back_as_it_was_written_and_knows_its_sums(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "small.json"
    write_timeline(path, TIMELINE)
    assert read_timeline(path) == TIMELINE
    assert TIMELINE.gradient_bytes == 10 * 4 + 640 * 4 + 64 * 147 * 2
    assert TIMELINE.step_seconds == pytest.approx(0.0085)
    text = TIMELINE.described()
    assert text.startswith("small, batch 8, 0.0 MB") and text.endswith("(recorded)")


def _with(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda values: {**values, name: value}


def _gradient(number: int, **changes: Any) -> Callable[[dict[str, Any]], Any]:
    def damage(values: dict[str, Any]) -> dict[str, Any]:
        values["gradients"][number] |= changes
        return values

    return damage


@pytest.mark.parametrize(
    ("damage", "parameter", "values"),
    [
        (_with("schema", 2), "schema", ["schema 2", "reads 1"]),
        (lambda values: [values], None, ["`object`"]),
        (lambda values: values.pop("forward_seconds") and values, None, ["missing", "forward"]),
        (_with("colour", "red"), "colour", ["not known"]),
        (_with("gradients", []), "gradients", ["none"]),
        (_with("backward_seconds", -1.0), "backward_seconds", [">= 0"]),
        (_with("forward_seconds", float("nan")), None, ["NaN is no finite number"]),
        (_with("forward_seconds", "long"), "forward_seconds", ["`float`"]),
        (_with("backward_seconds", 0.003), "gradients", ["within the backward pass"]),
        (_with("settings", {}), "settings", ["missing", "batch_size"]),
        (_gradient(2, ready_seconds=0.0005), "gradients", ["the order in which they are ready"]),
        (_gradient(0, place=2), "gradients", ["two", "one parameter"]),
        (_gradient(0, dtype="int4"), "gradients[0].dtype", ["float32"]),
        (_gradient(1, shape=[10, -64]), "gradients[1].shape[1]", [">= 1"]),
    ],
)
def test_a_damaged_timeline_is_refused_with_what_is_wrong(
    tmp_path: Path,
    damage: Callable[[dict[str, Any]], Any],
    parameter: str | None,
    values: list[str],
) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(damage(json.loads(json.dumps(dataclasses.asdict(TIMELINE))))))
    with refused(parameter or path, path, *values):
        read_timeline(path)
    path.write_text('{"schema": 1, "task"')
    with refused(path, "no JSON"):
        read_timeline(path)
    path.unlink()
    with refused(path):
        read_timeline(path)


# --------------------------------------------------------------------------------------------------
# Sweeps


def test_a_table_reads_back_as_it_was_written_with_its_conditions(tmp_path: Path) -> None:
    small = synthetic_sweep.cell("small", 2, ddp_acc=None, input_sizes="")
    table = [*synthetic_sweep.cells()[:-1], small]
    sweep = read_sweep(synthetic_sweep.write(tmp_path / "sweep", table) / TABLE)
    assert list(sweep.cells) == table
    conditions = (sweep.rate, sweep.stretches, sweep.ranks, sweep.wires, sweep.date)
    assert conditions == ("10gbit", "8", 2, "exact", "2026-11-22")
    assert sweep.machines == table[0].replayed_on
    assert sweep.models == [*synthetic_sweep.MODELS, "small"] and sweep.hosts == [1, 2, 4, 8]


def test_what_is_missing_is_named_with_its_reason_where_that_is_known(tmp_path: Path) -> None:
    sweep = read_sweep(synthetic_sweep.write(tmp_path) / TABLE)
    missing = sweep.missing(["alexnet", "hf_Bert", "vgg16"])
    assert list(missing) == [("hf_Bert", 8), *(("vgg16", hosts) for hosts in (1, 2, 4, 8))]
    assert missing["hf_Bert", 8] == "no reason recorded"
    assert missing["vgg16", 8].startswith("vgg16 needs about 30 GiB")


def test_a_sweep_may_go_on_elsewhere_with_a_larger_stretch_and_have_two_timelines_of_a_model(
    tmp_path: Path,
) -> None:
    table = [synthetic_sweep.cell("small", hosts, replayed_on="A") for hosts in (1, 2)]
    table.append(synthetic_sweep.cell("small", 8, stretch=32.0, replayed_on="B"))
    sweep = read_sweep(synthetic_sweep.write(tmp_path, table) / TABLE)
    assert sweep.stretches == "8 (hosts: 1, 2); 32 (hosts: 8)"
    assert sweep.machines == "A (hosts: 1, 2); B (hosts: 8)"
    derived = {"timeline": "derived, not recorded: all times × 0.5", "step_seconds_alone": 0.009}
    faster = [synthetic_sweep.cell("alexnet", hosts, **derived) for hosts in (2, 1)]
    both = synthetic_sweep.write(tmp_path, [*synthetic_sweep.cells(["alexnet"]), *faster])
    recorded, other = read_sweep(both / TABLE).recordings("alexnet")
    assert [cell.hosts for cell in recorded] == [1, 2, 4, 8] and recorded[0].is_recorded
    assert [cell.hosts for cell in other] == [1, 2] and not other[0].is_recorded


def test_a_cell_knows_its_timeline_and_its_rates() -> None:
    settings = {"batch_size": 8, "image_size": 64, "sequence_length": None, "amp_level": "O1"}
    timeline = dataclasses.replace(
        TIMELINE,
        settings={**settings, "autocast": "torch.bfloat16"},
        environment={"device": "cpu", "cores": 2, "cpu": "a CPU of two"},
    )
    made = synthetic_sweep.cell("small", 4)
    of_timeline = {"model", "batch_size", "input_sizes", "precision", "device", "timeline"}
    of_timeline |= {"gradient_bytes", "step_seconds_alone"}
    measured = {name: getattr(made, name) for name in COLUMNS if name not in of_timeline}
    cell = Cell.of(timeline, **measured)
    about = (cell.input_sizes, cell.precision, cell.device)
    assert about == ("image_size 64", "O1 (bfloat16)", "2 cores of a CPU of two")
    assert cell.step_seconds_alone == TIMELINE.step_seconds
    assert cell.ddp_rate == pytest.approx(4 * 2 * 8 / cell.ddp_step_seconds)
    assert cell.chosen_rate / cell.ddp_rate == pytest.approx(cell.acc_ratio)
    about = (TIMELINE.input_sizes, TIMELINE.precision, TIMELINE.device)
    assert about == ("", "not recorded", "a CPU")
    fp32 = dataclasses.replace(timeline, settings={**settings, "amp_level": "O0", "autocast": None})
    assert fp32.precision == "O0 (fp32)"


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("model,hosts", "model,machines", "its columns are not model, hosts"),
        ("resnet50,2,", "resnet50,two,", "'two'"),
        ("resnet50,2,", "resnet50,0,", "hosts='0' is not above 0"),
        ("1.1,1.045,1.155", "nan,1.045,1.155", "acc_ratio='nan'"),
        ("0.02,1.0,0.95", '0.02,"1.0,0.95', "',' expected after"),
        ("resnet50,8,2,10gbit", "resnet50,8\n#", "ends before"),
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


def test_no_text_and_figures_without_conditions_are_refused(tmp_path: Path) -> None:
    path = synthetic_sweep.write(tmp_path) / TABLE
    whole = path.read_text()
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
        conditions = {**synthetic_sweep.CONDITIONS, "date": date}
        (tmp_path / machine / "sweep.json").write_text(json.dumps(conditions))
    found = find_sweep(tmp_path)
    assert found is not None and found.path == tmp_path / "one" / TABLE
    assert find_sweep(tmp_path / "two") == read_sweep(tmp_path / "two" / TABLE)
    with refused("sweep", tmp_path / "gone"):
        find_sweep(tmp_path / "gone")


def test_it_needs_no_torch() -> None:
    code = "import sys, gallery_lib.measure.replay.sweep; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0

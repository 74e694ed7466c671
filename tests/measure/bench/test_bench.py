"""`gallery bench`: its options, its refusals, and results of real processes on a tiny task."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_task
from refusal import check_refused_command, refused

from gallery_lib.cli.main import main
from gallery_lib.config import BenchConfig, CompareConfig, TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.measure.bench import bench, task
from gallery_lib.measure.bench import plan as plans
from gallery_lib.measure.bench.plan import Plan
from gallery_lib.measure.bench.result import (
    BEST,
    VARIANTS,
    Outcome,
    Row,
    plain_name,
    read_bench,
)
from gallery_lib.measure.variants import peers
from gallery_lib.train.results import read_results

TINY = f"{tiny_task.__file__}:TASK"
FAILING = f"{tiny_task.__file__}:FAILING_ACCELERATED"
WRONG_BASELINE = f"{tiny_task.__file__}:WRONG_EAGER_O1"
FEW = [
    "--workers=0",
    "--threads=1",
    "--rounds=4",
    "--block-steps=2",
    "--batch-size=8",
    "--amp_level=O1",
]


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["resnet5"], ["'resnet5'", "`resnet50`"]),
        (["--variants=eager-O1,our", TINY], ["variants", "`our`", "`ours`"]),
        (["--variants=bset", TINY], ["variants", "`bset`", "`best`"]),
        (["--peer_modes=defualt", TINY], ["peer_modes", "`defualt`", "`default`"]),
        (["--peer_modes=,", TINY], ["peer_modes", "no mode"]),
        (["--fused", TINY], ["`--fused`"]),
        (["--rounds=2", TINY], ["rounds='2'", "between 4 and"]),
        (["--resume", TINY], ["--resume", "--out"]),
        (["--roofline", "--variants=fabric", TINY], ["--roofline", "ours"]),
        (["--roofline", "--waterfall=resnet50"], ["--roofline", "ours"]),
        (["--waterfall=resnet50", "alexnet"], ["--waterfall resnet50", "no other task"]),
        (["--waterfal=resnet50"], ["`--waterfal=resnet50`", "`--waterfall`"]),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    arguments: list[str], values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused_command(main(["bench", *arguments]), capsys.readouterr().err, *values)


def test_a_task_without_fit_data_ends_a_bench_of_named_tasks_and_stays_as_its_reason_in_one_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def data_of(config: TrainConfig) -> None:
        if config.model == "FAILING" or config.image_size == 32:
            raise InputError("its data are too short", parameter="data_dir")

    def measure(plan: Plan, *_: object, **__: object) -> Outcome:
        rows = {"eager-fp32": Row(plan.config.model)}
        return Outcome("d", "2026-01-01", 1.0, plan.config.model, {}, {}, rows, [])

    monkeypatch.setattr(bench.tasks, "data_of", data_of)
    monkeypatch.setattr(bench.tasks, "names", lambda: ["TASK", "FAILING"])
    monkeypatch.setattr(plans, "bench_plan", lambda name, config: Plan(
        TrainConfig(model=name, image_size=config.image_size), CompareConfig(), {}, {}, [], []
    ))  # fmt: skip
    monkeypatch.setattr(task, "measure", measure)
    _, found = bench.run([], BenchConfig(out=str(tmp_path / "all")))
    assert [outcome.reason for outcome in found.tasks.values()] == ["TASK", "FAILING"]
    for names, size in ((["TASK", "FAILING"], None), ([], 32)):  # named; and none that has data
        with refused("data_dir", "too short"):
            bench.run(names, BenchConfig(out=str(tmp_path / "refused"), image_size=size))
    assert not (tmp_path / "refused").exists()


def test_a_folder_with_results_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench.json").write_text("{")
    code = main(["bench", TINY, f"--out={tmp_path}"])
    check_refused_command(code, capsys.readouterr().err, f"out={tmp_path}", "--resume")
    code = main(["bench", TINY, f"--out={tmp_path}", "--resume"])
    check_refused_command(code, capsys.readouterr().err, tmp_path / "bench.json", "damaged")


def test_it_goes_on_with_what_this_machine_measured_and_measures_the_rest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processors of one name, as hypervisors have them, are two machines."""
    monkeypatch.setattr(bench.hardware, "cpu_model", lambda: "AMD EPYC")
    monkeypatch.setattr(bench.tasks, "data_of", lambda config: None)
    reasons: list[str | None] = ["the first failed", None, None]
    measured: list[str] = []

    def measure(plan: Plan, alive: int | None, digest: str, folder: Path, **_: object) -> Outcome:
        measured.append(digest)
        reason, rows = reasons[len(measured) - 1], {"eager-fp32": Row("not measured")}
        return Outcome(digest, "2026-01-01", 1.0, reason, {}, {"copy": 1e10}, rows, [])

    monkeypatch.setattr(task, "measure", measure)
    said = []
    for resume, isa in ((False, "avx2"), (True, "avx2"), (True, "avx2"), (True, "avx512_bf16")):
        monkeypatch.setattr(bench.hardware, "cpu_flags", lambda isa=isa: frozenset({isa}))
        bench.run([TINY], BenchConfig(out=str(tmp_path), amp_level="O0", resume=resume))
        said.append(capsys.readouterr().err)
    assert len(measured) == 3 and measured[0] == measured[1] != measured[2]
    assert said == [
        "",
        "TASK is measured again: the last time it failed.\n",
        "",
        (
            "TASK is measured again: the last time it was with other options, another package, "
            "or on another machine.\n"
        ),
    ]


@pytest.mark.slow
def test_other_libraries_train_the_same_and_a_variant_that_crashes_stays_as_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", FAILING, *FEW, "--variants=accelerate,fabric,ours", f"--out={tmp_path}"]
    assert main(arguments) == 1
    said = capsys.readouterr().out
    outcome = read_bench(tmp_path / "bench.json").tasks["FAILING_ACCELERATED"]
    for name in ("eager-O1", "accelerate", "fabric"):
        row = outcome.rows[name]
        if missing := name != "eager-O1" and peers.missing(name):
            assert row.reason == missing and row.reason in said
            continue
        assert row.comparable, f"{name}: {row.reason} {row.parity}"
        assert row.flops_per_second and row.bytes_per_second
        assert name == "eager-O1" or outcome.ratio("eager-O1", name) is not None
    assert outcome.rows["ours"].reason == "rank 0 failed with ValueError: planted failure."
    assert "did not run: rank 0 failed with ValueError: planted failure" in said
    assert "GFLOP/s in float32" in said
    assert (
        "![Ours is faster in" in (tmp_path / "bench.md").read_text()
        and (tmp_path / "bench.png").stat().st_size > 1000
    )
    before = (tmp_path / "bench.json").read_text()
    assert main([*arguments, "--resume"]) == 1
    assert (tmp_path / "bench.json").read_text() == before  # nothing was measured again


@pytest.mark.thorough
@pytest.mark.slow
def test_in_fp32_other_libraries_train_the_same_too_each_time_they_are_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forms = "torch.compile,accelerate-best,fabric-best,eager-best,ours"
    asked = [
        f"--variants={forms}",
        "--amp_level=O0",
        "--starts=2",
        "--peer_modes=default",
        "--roofline",
        f"--out={tmp_path}",
    ]
    assert main(["bench", TINY, *FEW[:-1], *asked]) == 0
    found = read_bench(tmp_path / "bench.json")
    assert (found.baseline, found.amp_level) == ("eager-fp32", "O0")
    outcome = found.tasks["TASK"]
    assert list(outcome.rows) == [
        "eager-fp32",
        *(name for name in VARIANTS if name in forms.split(",")),
    ]
    for name, row in list(outcome.rows.items())[1:]:
        if missing := name != "ours" and peers.missing(plain_name(name)):
            assert row.reason == missing
            continue
        if name in BEST:
            assert row.techniques["optimizer"] == "AdamW, torch's fused form"
            assert not row.techniques["allocator"].startswith("not applied: started without")
        assert row.comparable and row.parity is not None, f"{name}: {row.reason} {row.parity}"
        gradients = next(check for check in row.parity["checks"] if check["name"] == "gradients")
        assert gradients["worst"] < 1e-3, "not fp32"
        assert outcome.ratio("eager-fp32", name) is not None
        results = [
            read_results(run)
            for run in (tmp_path / "TASK" / "group1" / start / name for start in (".", "start-2"))
        ]
        first, again = (each.loss["curve"] for each in results)
        assert first == again and results[0].step_seconds != results[1].step_seconds
    roofline = outcome.roofline
    assert roofline is not None and not roofline.operations  # they are in its own file
    assert sum(group.flops for group in roofline.groups) > 1e6
    assert (tmp_path / "TASK" / "roofline" / "roofline.json").exists()
    assert "over eager-fp32" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.slow
def test_where_the_baseline_is_the_odd_one_out_the_others_are_held_against_float64_and_one_another(
    tmp_path: Path,
) -> None:
    assert (
        main(["bench", WRONG_BASELINE, *FEW, "--variants=eager-fp32,ours", f"--out={tmp_path}"])
        == 0
    )
    outcome = read_bench(tmp_path / "bench.json").tasks["WRONG_EAGER_O1"]
    assert (
        not outcome.rows["eager-fp32"].comparable
        and outcome.ratio("eager-O1", "eager-fp32") is None
    )
    ours = outcome.rows["ours"]
    assert (
        ours.comparable
        and ours.parity is not None
        and outcome.ratio("eager-O1", "ours") is not None
    )
    scale = next(check for check in ours.parity["checks"] if check["name"] == "gradient scale")
    assert "held against float64" in scale["where"]
    assert outcome.ratio("eager-fp32", "ours") is not None

"""`gallery bench`: its options, its refusals, and results of real processes on a tiny task."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from pathlib import Path

import pytest
import tiny_task
import torch

from gallery_lib import optim, stats
from gallery_lib.cli.main import main
from gallery_lib.config import BenchConfig, CompareConfig, TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.measure.bench import bench, task
from gallery_lib.measure.bench.result import Outcome, read_bench
from gallery_lib.measure.variants import forms as variants
from gallery_lib.measure.variants import peers, recipes
from gallery_lib.optim import OptimizerSpec
from gallery_lib.system.extras import install_command
from gallery_lib.train.recipe import Plain
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
    ("arguments", "said"),
    [
        (["resnet5"], "Did you mean `resnet50`"),
        (["--variants=eager-O1,our", TINY], "Did you mean `ours`"),
        (["--variants=bset", TINY], "Did you mean `best`"),
        (["--peer_modes=defualt", TINY], "peer_modes: unknown `defualt`. Did you mean `default`"),
        (["--peer_modes=,", TINY], "names no mode"),
        (["--fused", TINY], "unknown option"),
        (["--rounds=2", TINY], "rounds='2' must be at least 4"),
        (["--resume", TINY], "--resume needs --out"),
        (["--waterfall=resnet50", "alexnet"], "takes no other task"),
        (["--waterfal=resnet50"], "unknown option"),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_task_without_fit_data_ends_a_bench_of_named_tasks_and_stays_as_its_reason_in_one_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def data_of(config: TrainConfig) -> None:
        if config.model == "FAILING" or config.image_size == 32:
            raise InputError("its data are too short")

    def measure(line: task.Line, *_: object, **__: object) -> Outcome:
        return Outcome("d", "2026-01-01", 1.0, line.config.model, {}, {}, {}, [])

    monkeypatch.setattr(bench.tasks, "data_of", data_of)
    monkeypatch.setattr(bench.tasks, "names", lambda: ["TASK", "FAILING"])
    monkeypatch.setattr(bench, "bench_line", lambda name, asked: task.Line(
        TrainConfig(model=name, image_size=asked.image_size), CompareConfig(), {}, {}, [], []
    ))  # fmt: skip
    monkeypatch.setattr(task, "measure", measure)
    _, found = bench.run([], BenchConfig(out=str(tmp_path / "all")))
    assert [outcome.reason for outcome in found.tasks.values()] == ["TASK", "FAILING"]
    for names, size in ((["TASK", "FAILING"], None), ([], 32)):  # named; and none that has data
        with pytest.raises(InputError, match="too short"):
            bench.run(names, BenchConfig(out=str(tmp_path / "refused"), image_size=size))
    assert not (tmp_path / "refused").exists()


def test_a_folder_with_results_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench.json").write_text("{")
    assert main(["bench", TINY, f"--out={tmp_path}"]) == 2
    assert "holds the results of an earlier bench. Add --resume" in capsys.readouterr().err
    assert main(["bench", TINY, f"--out={tmp_path}", "--resume"]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_it_goes_on_with_what_this_machine_measured_and_measures_the_rest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processors of one name, as hypervisors have them, are two machines."""
    monkeypatch.setattr(bench.hardware, "cpu_model", lambda: "AMD EPYC")
    monkeypatch.setattr(bench.tasks, "data_of", lambda config: None)
    reasons: list[str | None] = ["the first failed", None, None]
    measured: list[str] = []

    def measure(
        line: task.Line, alive: int | None, digest: str, folder: Path, **_: object
    ) -> Outcome:
        measured.append(digest)
        return Outcome(digest, "2026-01-01", 1.0, reasons[len(measured) - 1], {}, {}, {}, [])

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


@pytest.mark.parametrize(("level", "baseline"), [("O1", "eager-O1"), ("O0", "eager-fp32")])
def test_variants_differ_in_who_makes_them_fast_and_in_nothing_else(
    level: str, baseline: str
) -> None:
    line = bench.bench_line(TINY, BenchConfig(batch_size=8, amp_level=level))
    assert (
        set(line.variants) | set(line.absent)
        == set(line.order)
        == set(bench.VARIANTS) - ({"eager-O1"} if level == "O0" else set())
    )
    assert line.order[0] == line.baseline == baseline
    plain = line.variants[baseline].config
    assert plain.amp_level == level
    for name, variant in line.variants.items():
        changed = (
            {"amp_level": "O0"}
            if name == "eager-fp32"
            else {"compiler_opt": True}
            if name == "ours"
            else {}
        )
        assert variant.config == dataclasses.replace(plain, **changed)
    assert (baseline, "ours") in line.pairs and ("eager-fp32", "ours") in line.pairs
    assert len(set(line.pairs)) == len(line.pairs)
    assert {
        name for name, variant in line.variants.items() if "GLIBC_TUNABLES" in variant.environment
    } <= set(variants.BEST)


@pytest.mark.parametrize(("has_units", "baseline"), [(True, "eager-O1"), (False, "eager-fp32")])
def test_a_cpu_that_would_emulate_bfloat16_is_measured_in_fp32(
    monkeypatch: pytest.MonkeyPatch, has_units: bool, baseline: str
) -> None:
    monkeypatch.setattr(bench.hardware, "device_type", lambda: "cpu")
    monkeypatch.setattr(bench.hardware, "computes_in_bf16", lambda device_type: has_units)
    assert (
        bench.bench_line(TINY, BenchConfig()).baseline
        == baseline
        == bench.waterfall_line(TINY, BenchConfig()).baseline
    )
    # A user who asks for emulated bfloat16 gets it.
    asked = BenchConfig(variants="eager-O1,eager-fp32,ours")
    assert set(bench.bench_line(TINY, asked).variants) == {"eager-O1", "eager-fp32", "ours"}


def test_the_baseline_is_always_in_and_a_word_stands_for_a_form_of_all_peers() -> None:
    asked = {
        "torch.compile": ["torch.compile"],
        "as-it-comes": ["torch.compile", "accelerate", "fabric"],
        "best,ours": ["eager-best", "torch.compile-best", "accelerate-best", "fabric-best", "ours"],
    }
    for words, names in asked.items():
        assert bench.bench_line(TINY, BenchConfig(variants=words, amp_level="O1")).order == [
            "eager-O1",
            *names,
        ]


def test_ours_and_the_best_forms_get_their_places_beside_the_baseline_first() -> None:
    line = bench.bench_line(TINY, BenchConfig(amp_level="O0"))
    names = [name for name in line.variants if name != line.baseline]
    with_ours, *_ = task.groups(names, 5)
    assert with_ours[0] == "ours" and set(with_ours[1:]) <= set(variants.BEST)


def test_the_large_profile_has_larger_inputs_and_quicks_batches() -> None:
    quick, large = (
        bench.bench_line("resnet18", BenchConfig(profile=profile)) for profile in ("quick", "large")
    )  # type: ignore[arg-type]
    assert (quick.config.image_size, large.config.image_size) == (64, 224)
    assert quick.config.batch_size == large.config.batch_size
    assert large.config.sequence_length is None
    lengths = {
        name: bench.bench_line(name, BenchConfig(profile="large")).config.sequence_length
        for name in ("hf_Bert", "tts_angular")
    }
    # The mock utterances are no longer than that.
    assert lengths == {
        "hf_Bert": 128,
        "tts_angular": 50,
    }


def test_a_library_that_is_missing_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(peers.MODULES, "fabric", "no_such_library")
    line = bench.bench_line(TINY, BenchConfig())
    for name in ("fabric", "fabric-best"):
        assert line.absent[name] == f"not installed: no-such-library ({install_command('bench')})"
        assert name not in line.variants and name in line.order


def test_a_waterfall_adds_one_technique_after_another() -> None:
    line = bench.waterfall_line(TINY, BenchConfig())
    words = [variant.recipe for variant in line.variants.values()]
    assert words[0] == []
    assert all(
        len(after) == len(before) + 1 and set(before) < set(after)
        for before, after in itertools.pairwise(words)
    )
    assert set(words[-1]) | set(line.absent) == set(recipes.TECHNIQUES)
    assert all(why.startswith("does not apply: ") for why in line.absent.values())


def test_a_technique_comes_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes.hardware, "prefers_channels_last", lambda device_type: True)

    def prepared(*names: str):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
        spec = OptimizerSpec("SGD", lr=0.1)
        loader = torch.utils.data.DataLoader(torch.arange(2))
        build_optimizer = functools.partial(
            spec.build, model.parameters(), lr=None, weight_decay=None
        )
        return recipes.recipe(names).prepare(
            Plain(model, loader, build_optimizer, TrainConfig(), None)
        )

    layout, fused = prepared("layout"), prepared(recipes.FUSED)
    assert (
        layout.model[0].weight.is_contiguous(memory_format=torch.channels_last)
        and optim.kind(layout.optimizer) == "torch's own"
    )
    assert layout.techniques == {"layout": "channels_last"}
    assert fused.model[0].weight.is_contiguous() and optim.kind(fused.optimizer) == "fused"
    assert fused.techniques == {"optimizer": "fused"}


def test_groups_leave_room_for_the_baseline() -> None:
    assert list(task.groups(["a", "b", "c", "d", "e"], 6)) == [["a", "b", "c", "d", "e"]]
    assert list(task.groups(["a", "b", "c"], 3)) == [["a", "b"], ["c"]]
    assert list(task.groups(["a", "b"], 2)) == [["a"], ["b"]]


def test_the_geometric_mean_of_equal_ratios_is_that_ratio_known_better() -> None:
    one = stats.Ratio(1.5, 1.4, 1.6)
    mean = stats.geometric_mean([one] * 4)
    assert mean.ratio == pytest.approx(1.5)
    assert 1.4 < mean.low < 1.5 < mean.high < 1.6
    assert stats.geometric_mean(
        [stats.Ratio(2.0, 1.9, 2.1), stats.Ratio(0.5, 0.4, 0.6)]
    ).ratio == pytest.approx(1.0)


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
        "![Bars with intervals" in (tmp_path / "bench.md").read_text()
        and (tmp_path / "bench.png").stat().st_size > 1000
    )
    before = (tmp_path / "bench.json").read_text()
    assert main([*arguments, "--resume"]) == 1
    assert (tmp_path / "bench.json").read_text() == before  # nothing was measured again


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
        f"--out={tmp_path}",
    ]
    assert main(["bench", TINY, *FEW[:-1], *asked]) == 0
    found = read_bench(tmp_path / "bench.json")
    assert (found.baseline, found.amp_level) == ("eager-fp32", "O0")
    outcome = found.tasks["TASK"]
    assert list(outcome.rows) == [
        "eager-fp32",
        *(name for name in variants.VARIANTS if name in forms.split(",")),
    ]
    for name, row in list(outcome.rows.items())[1:]:
        if missing := name != "ours" and peers.missing(variants.plain_name(name)):
            assert row.reason == missing
            continue
        if name in variants.BEST:
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
    assert "over eager-fp32" in capsys.readouterr().out


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

"""`gallery bench`: its plans, its refusals, and results of real processes on a tiny task."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import tiny_task
from refusal import check_refused_command

from gallery_lib.cli.main import main
from gallery_lib.config import BenchConfig, CompareConfig
from gallery_lib.measure import bench, variants
from gallery_lib.measure.bench import Plan, bench_plan, groups, waterfall_of
from gallery_lib.measure.bench_result import (
    BEST,
    GRAPHS,
    VARIANTS,
    Outcome,
    Row,
    best_of_others,
    read_bench,
)
from gallery_lib.notebooks.cells import task as notebook
from gallery_lib.system import hardware
from gallery_lib.system.gpu import GpuState
from gallery_lib.system.hardware import Gpu
from gallery_lib.train.resolved import resolve

TINY, FAILING, WRONG_BASELINE = (
    f"{tiny_task.__file__}:{name}" for name in ("TASK", "FAILING_ACCELERATED", "WRONG_EAGER_O1")
)
FEW = ["--workers=0", "--threads=1", "--rounds=4", "--block-steps=2", "--batch-size=8"]


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["resnet5"], ["'resnet5'", "`resnet50`"]),
        (["--variants=eager-O1,our", TINY], ["variants", "`our`", "`ours`"]),
        (["resnet18", "--data_dir=/no/such"], ["/no/such"]),
        (["--rounds=2", TINY], ["rounds='2'", "between 4 and"]),
        (["--resume", TINY], ["--resume", "--out"]),
        (["--variant=ours"], ["`--variant`", "`--variants`"]),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    arguments: list[str], values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused_command(main(["bench", *arguments]), capsys.readouterr().err, *values)


def test_a_folder_with_results_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench.json").write_text("{")
    words = ["bench", TINY, f"--out={tmp_path}"]
    check_refused_command(main(words), capsys.readouterr().err, f"out={tmp_path}", "--resume")
    code = main([*words, "--resume"])
    check_refused_command(code, capsys.readouterr().err, tmp_path / "bench.json", "damaged")


def test_it_goes_on_with_what_this_machine_measured_and_measures_the_rest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processors of one name, as hypervisors have them, are two machines."""
    monkeypatch.setattr(bench.hardware, "cpu_model", lambda: "AMD EPYC")
    monkeypatch.setattr(bench.tasks, "data_of", lambda config: None)
    reasons: list[str | None] = ["the first failed", None, None]
    measured: list[str] = []

    def measure(plan: Plan, digest: str, folder: Path, **_: object) -> Outcome:
        measured.append(digest)
        reason, rows = reasons[len(measured) - 1], {"eager-fp32": Row("not measured")}
        return Outcome(digest, "2026-01-01", 1.0, reason, {}, rows, [])

    monkeypatch.setattr(bench, "measure_task", measure)
    for resume, isa in ((False, "avx2"), (True, "avx2"), (True, "avx2"), (True, "avx512_bf16")):
        monkeypatch.setattr(bench.hardware, "cpu_flags", lambda isa=isa: frozenset({isa}))
        bench.run([TINY], BenchConfig(out=str(tmp_path), amp_level="O0", resume=resume))
    # Again after the failure, and on another machine.
    assert len(measured) == 3 and measured[0] == measured[1] != measured[2]


@pytest.mark.slow
def test_other_libraries_train_the_same_and_a_variant_that_crashes_stays_as_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", FAILING, *FEW, "--amp_level=O1", f"--out={tmp_path}"]
    arguments += ["--variants=accelerate-best,fabric-best,ours"]
    assert main(arguments) == 1
    said = capsys.readouterr().out
    outcome = read_bench(tmp_path / "bench.json").tasks["FAILING_ACCELERATED"]
    for name in ("eager-O1", "accelerate-best", "fabric-best"):
        row = outcome.rows[name]
        if missing := name != "eager-O1" and variants.missing(name):
            assert row.reason == missing and row.reason in said
            continue
        assert row.comparable, f"{name}: {row.reason} {row.parity}"
        assert name == "eager-O1" or outcome.ratio("eager-O1", name) is not None
    assert outcome.rows["ours"].reason == "rank 0 failed with ValueError: planted failure."
    assert "did not run: rank 0 failed with ValueError: planted failure" in said
    assert "![Ours is faster in" in (tmp_path / "bench.md").read_text()
    assert (tmp_path / "bench.png").stat().st_size > 1000
    before = (tmp_path / "bench.json").read_text()
    assert main([*arguments, "--resume"]) == 1
    assert (tmp_path / "bench.json").read_text() == before  # nothing was measured again


@pytest.mark.thorough
@pytest.mark.slow
def test_in_fp32_other_libraries_train_the_same_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forms = "torch.compile-best,accelerate-best,fabric-best,eager-best,ours"
    asked = ["--amp_level=O0", f"--variants={forms}", f"--out={tmp_path}"]
    assert main(["bench", TINY, *FEW, *asked]) == 0
    found = read_bench(tmp_path / "bench.json")
    assert (found.baseline, found.amp_level) == ("eager-fp32", "O0")
    outcome = found.tasks["TASK"]
    for name, row in list(outcome.rows.items())[1:]:
        if missing := name != "ours" and variants.missing(name):
            assert row.reason == missing
            continue
        if name in BEST:
            assert row.techniques["optimizer"] == "AdamW, torch's fused form"
            assert not row.techniques["allocator"].startswith("not applied: started without")
        assert row.comparable and row.parity is not None, f"{name}: {row.reason} {row.parity}"
        gradients = next(check for check in row.parity.checks if check.name == "gradients")
        assert gradients.worst < 1e-3, "not fp32"
        assert outcome.ratio("eager-fp32", name) is not None
    assert "over eager-fp32" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.slow
def test_where_the_baseline_is_the_odd_one_out_ours_is_held_against_float64(tmp_path: Path) -> None:
    words = [*FEW, "--amp_level=O1", "--variants=eager-fp32,ours", f"--out={tmp_path}"]
    assert main(["bench", WRONG_BASELINE, *words]) == 0
    outcome = read_bench(tmp_path / "bench.json").tasks["WRONG_EAGER_O1"]
    ours, fp32 = outcome.rows["ours"], outcome.rows["eager-fp32"]
    assert not fp32.comparable and outcome.ratio("eager-O1", "eager-fp32") is None
    assert ours.comparable and ours.parity is not None and outcome.ratio("eager-O1", "ours")
    scale = next(check for check in ours.parity.checks if check.name == "gradient scale")
    assert "held against float64" in scale.where


# --------------------------------------------------------------------------------------------------
# Plans


@pytest.mark.parametrize(("level", "baseline"), [("O1", "eager-O1"), ("O0", "eager-fp32")])
def test_variants_differ_in_who_makes_them_fast_and_in_nothing_else(
    level: str, baseline: str
) -> None:
    plan = bench_plan(TINY, BenchConfig(batch_size=8, amp_level=level))  # type: ignore[arg-type]
    expected = set(VARIANTS) - set(GRAPHS) - ({"eager-O1"} if level == "O0" else set())
    assert set(plan.variants) | set(plan.absent) == set(plan.order) == expected
    assert plan.order[0] == plan.baseline == baseline
    plain = plan.variants[baseline].config
    changes = {"eager-fp32": {"amp_level": "O0"}, "ours": {"compiler_opt": True}}
    for name, variant in plan.variants.items():
        assert variant.config == dataclasses.replace(plain, **changes.get(name, {}))
        assert name in BEST or "GLIBC_TUNABLES" not in variant.environment
    assert (baseline, "ours") in plan.pairs and ("eager-fp32", "ours") in plan.pairs
    assert len(set(plan.pairs)) == len(plan.pairs)


@pytest.mark.parametrize(("has_units", "baseline"), [(True, "eager-O1"), (False, "eager-fp32")])
def test_a_cpu_that_would_emulate_bfloat16_is_measured_in_fp32(
    monkeypatch: pytest.MonkeyPatch, has_units: bool, baseline: str
) -> None:
    monkeypatch.setattr(hardware, "device_type", lambda: "cpu")
    monkeypatch.setattr(hardware, "computes_in_bf16", lambda device_type: has_units)
    plan = bench_plan(TINY, BenchConfig())
    assert plan.baseline == waterfall_of(plan.config, CompareConfig(), {}).baseline == baseline
    # The baseline is always in.
    plan = bench_plan(TINY, BenchConfig(variants="torch.compile-best", amp_level="O1"))
    assert plan.order == ["eager-O1", "torch.compile-best"]
    # A user who asks for emulated bfloat16 gets it.
    asked = BenchConfig(variants="eager-O1,eager-fp32,ours")
    assert set(bench_plan(TINY, asked).variants) == {"eager-O1", "eager-fp32", "ours"}


def test_what_is_compared_takes_turns_together() -> None:
    plan = bench_plan(TINY, BenchConfig(amp_level="O0"))
    with_ours, *_ = groups([name for name in plan.variants if name != plan.baseline], 5)
    best = set(plan.variants) & set(BEST)  # fewer where a peer is not installed
    assert with_ours[0] == "ours" and len(best) >= 2
    assert set(with_ours[1 : 1 + len(best)]) <= best
    assert list(groups(["a", "b", "c", "d", "e"], 6)) == [["a", "b", "c", "d", "e"]]
    assert list(groups(["a", "b", "c"], 3)) == [["a", "b"], ["c"]]


def test_the_large_profile_has_larger_inputs_and_quicks_batches() -> None:
    quick = bench_plan("resnet18", BenchConfig(profile="quick")).config
    large = bench_plan("resnet18", BenchConfig(profile="large")).config
    assert (quick.image_size, large.image_size, large.sequence_length) == (64, 224, None)
    assert quick.batch_size == large.batch_size
    for name, length in {"hf_Bert": 128, "tts_angular": 50}.items():  # no mock utterance is longer
        assert bench_plan(name, BenchConfig(profile="large")).config.sequence_length == length


def test_a_library_that_is_missing_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(variants.MODULES, "fabric-best", "no_such_library")
    plan, name = bench_plan(TINY, BenchConfig()), "fabric-best"
    assert plan.absent[name] == "not installed: no-such-library (`prepare.sh --test` installs it)"
    assert name not in plan.variants and name in plan.order


def test_a_waterfall_adds_one_technique_after_another() -> None:
    train, added = bench_plan(TINY, BenchConfig()).config, {n: [n] for n in variants.TECHNIQUES}
    plan = waterfall_of(train, CompareConfig(), added)
    words = [variant.recipe for variant in plan.variants.values()]
    assert words[0] == []
    for before, after in itertools.pairwise(words):
        assert len(after) == len(before) + 1 and set(before) < set(after)
    assert set(words[-1]) | set(plan.absent) == set(variants.TECHNIQUES)
    assert all(why.startswith("does not apply: ") for why in plan.absent.values())


@pytest.mark.parametrize(
    ("device", "asked", "processes", "workers"),
    [
        ("cpu", None, 1, 1), ("cuda", None, 1, 11), ("cuda", None, 4, 2), ("cuda", None, 12, 1),
        ("cuda", 3, 1, 3), ("cuda", 0, 1, 0),
    ],
)  # fmt: skip
def test_a_gpu_is_fed_by_several_processes_unless_the_options_say_otherwise(
    monkeypatch: pytest.MonkeyPatch, device: str, asked: int | None, processes: int, workers: int
) -> None:
    monkeypatch.setattr(hardware, "cores", lambda: 12)
    monkeypatch.setattr(hardware, "device_type", lambda: device)
    plan = bench_plan(TINY, BenchConfig(amp_level="O0", workers=asked))
    config = resolve(plan.config, local_processes=processes, run_dir="")
    assert (plan.config.workers, config.workers) == (asked, workers)
    monkeypatch.setattr(hardware, "cores", lambda: 96)
    most = resolve(plan.config, local_processes=1, run_dir="").workers
    assert most == (16 if (device, asked) == ("cuda", None) else workers)


def test_on_a_gpu_torch_compile_is_measured_in_its_modes_with_graphs_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = bench_plan(TINY, BenchConfig(variants=",".join(GRAPHS), amp_level="O0"))
    assert all("for GPUs" in asked.absent[name] for name in GRAPHS)
    monkeypatch.setattr(hardware, "device_type", lambda: "cuda")
    plan = bench_plan(TINY, BenchConfig(amp_level="O0"))
    assert {(name, "ours") for name in GRAPHS} <= set(plan.pairs) and set(GRAPHS) <= set(BEST)


def test_a_gpu_gets_the_batch_of_which_two_runs_fit_and_half_of_it_where_they_do_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def batches(gibibytes: int, **options: Any) -> list[int | None]:
        card = Gpu("A", (9, 0), gibibytes * 2**30)
        monkeypatch.setattr(hardware, "gpu_count", lambda: 1)
        monkeypatch.setattr(hardware, "visible_gpus", lambda: (card,))
        return [
            bench_plan("hf_Bert", BenchConfig(**options)).config.batch_size,
            notebook.settings("hf_Bert", options).train.batch_size,
        ]

    assert batches(24) == [8, 8]
    said = "hf_Bert: batch_size=8, since two variants with 32 need about 62 GiB, and the GPU has 23"
    assert capsys.readouterr().err.count(f"{said}.\n") == 2
    assert batches(24, profile="full") == [32, 32] and batches(24, batch_size=64) == [64, 64]
    capsys.readouterr()
    assert batches(80) == [32, 32] and "hf_Bert" not in capsys.readouterr().err
    # The estimate is none of what a compiler or cuDNN takes.
    tried: list[int | None] = []

    def measure(plan: Plan, digest: str, folder: Path, **_: object) -> Outcome:
        tried.append(plan.config.batch_size)
        short = "rank 0: the memory of the GPU ran out" if len(tried) < 3 else None
        peer = Row("rank 0: the memory of the GPU ran out")  # a reason to show, not to go on
        rows = {"eager-O1": Row(None), "fabric-best": peer, "ours": Row(short)}
        return Outcome(digest, "2026-01-01", 1.0, None, {}, rows, [])

    monkeypatch.setattr(bench, "measure_task", measure)
    for options in ({}, {"batch_size": 8}):
        out = str(tmp_path / str(len(options)))
        bench.run([TINY], BenchConfig(out=out, amp_level="O1", **options))
    assert tried == [None, 4, 2, 8]  # first the task's own, which is 8


def test_the_best_of_the_others_is_the_one_that_ours_has_the_smallest_lead_over() -> None:
    def best(leads: dict[str, float], gpu: dict[str, GpuState] | None = None) -> str | None:
        rows = {name: Row(None, gpu=(gpu or {}).get(name)) for name in VARIANTS}
        ratios = [(name, "ours", r, r * 0.9, r * 1.1) for name, r in leads.items()]
        return best_of_others(Outcome("d", "2026-01-01", 1.0, None, {}, rows, ratios))

    for leads, expected in (
        ({"torch.compile-best": 1.2, "accelerate-best": 1.15, "eager-O1": 1.1}, "accelerate-best"),
        ({"torch.compile-best": 1.2, "eager-best": 0.9}, "eager-best"),
        ({"fabric-best": 1.5}, "fabric-best"),
        ({"eager-O1": 1.5}, None),  # what lacks parity or did not run has no ratio
    ):
        assert best(leads) == expected
    clocks = GpuState(1755, 2619, 600, [])
    assert best({"fabric-best": 1.5}, {"fabric-best": clocks, "eager-O1": clocks}) == "fabric-best"
    assert best({"fabric-best": 1.5}, {"eager-best": clocks}) is None  # it may be the better one

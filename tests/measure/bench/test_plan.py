"""Plans of a bench: which variants run with which options, and which are alive together."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import tiny_task

from gallery_lib.config import BenchConfig
from gallery_lib.measure.bench.plan import bench_plan, waterfall_plan
from gallery_lib.measure.bench.result import (
    BEST,
    GROUPS,
    PEERS,
    TURN_ORDER,
    VARIANTS,
    Outcome,
    Row,
    best_of_others,
    plain_name,
)
from gallery_lib.measure.bench.task import groups
from gallery_lib.measure.variants import peers, recipes
from gallery_lib.system import hardware
from gallery_lib.system.version import install_command

TINY = f"{tiny_task.__file__}:TASK"


@pytest.mark.parametrize(("level", "baseline"), [("O1", "eager-O1"), ("O0", "eager-fp32")])
def test_variants_differ_in_who_makes_them_fast_and_in_nothing_else(
    level: str, baseline: str
) -> None:
    plan = bench_plan(TINY, BenchConfig(batch_size=8, amp_level=level))
    assert (
        set(plan.variants) | set(plan.absent)
        == set(plan.order)
        == set(VARIANTS) - ({"eager-O1"} if level == "O0" else set())
    )
    assert plan.order[0] == plan.baseline == baseline
    plain = plan.variants[baseline].config
    assert plain.amp_level == level
    for name, variant in plan.variants.items():
        changed = (
            {"amp_level": "O0"}
            if name == "eager-fp32"
            else {"compiler_opt": True}
            if name == "ours"
            else {}
        )
        assert variant.config == dataclasses.replace(plain, **changed)
    assert (baseline, "ours") in plan.pairs and ("eager-fp32", "ours") in plan.pairs
    assert len(set(plan.pairs)) == len(plan.pairs)
    assert {
        name for name, variant in plan.variants.items() if "GLIBC_TUNABLES" in variant.environment
    } <= set(BEST)


@pytest.mark.parametrize(("has_units", "baseline"), [(True, "eager-O1"), (False, "eager-fp32")])
def test_a_cpu_that_would_emulate_bfloat16_is_measured_in_fp32(
    monkeypatch: pytest.MonkeyPatch, has_units: bool, baseline: str
) -> None:
    monkeypatch.setattr(hardware, "device_type", lambda: "cpu")
    monkeypatch.setattr(hardware, "computes_in_bf16", lambda device_type: has_units)
    assert (
        bench_plan(TINY, BenchConfig()).baseline
        == baseline
        == waterfall_plan(TINY, BenchConfig()).baseline
    )
    # A user who asks for emulated bfloat16 gets it.
    asked = BenchConfig(variants="eager-O1,eager-fp32,ours")
    assert set(bench_plan(TINY, asked).variants) == {"eager-O1", "eager-fp32", "ours"}


def test_the_baseline_is_always_in_and_a_word_stands_for_a_form_of_all_peers() -> None:
    asked = {
        "torch.compile": ["torch.compile"],
        "as-it-comes": ["torch.compile", "accelerate", "fabric"],
        "best,ours": ["eager-best", "torch.compile-best", "accelerate-best", "fabric-best", "ours"],
    }
    for words, names in asked.items():
        assert bench_plan(TINY, BenchConfig(variants=words, amp_level="O1")).order == [
            "eager-O1",
            *names,
        ]


def test_ours_and_the_best_forms_get_their_places_beside_the_baseline_first() -> None:
    plan = bench_plan(TINY, BenchConfig(amp_level="O0"))
    names = [name for name in plan.variants if name != plan.baseline]
    with_ours, *_ = groups(names, 5)
    best = set(names) & set(BEST)  # fewer where a peer is not installed
    assert with_ours[0] == "ours" and len(best) >= 2
    assert set(with_ours[1 : 1 + len(best)]) <= best


def test_the_large_profile_has_larger_inputs_and_quicks_batches() -> None:
    quick, large = (
        bench_plan("resnet18", BenchConfig(profile=profile)) for profile in ("quick", "large")
    )  # type: ignore[arg-type]
    assert (quick.config.image_size, large.config.image_size) == (64, 224)
    assert quick.config.batch_size == large.config.batch_size
    assert large.config.sequence_length is None
    lengths = {
        name: bench_plan(name, BenchConfig(profile="large")).config.sequence_length
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
    plan = bench_plan(TINY, BenchConfig())
    for name in ("fabric", "fabric-best"):
        assert plan.absent[name] == f"not installed: no-such-library ({install_command('bench')})"
        assert name not in plan.variants and name in plan.order


def test_a_waterfall_adds_one_technique_after_another() -> None:
    plan = waterfall_plan(TINY, BenchConfig())
    words = [variant.recipe for variant in plan.variants.values()]
    assert words[0] == []
    assert all(
        len(after) == len(before) + 1 and set(before) < set(after)
        for before, after in itertools.pairwise(words)
    )
    assert set(words[-1]) | set(plan.absent) == set(recipes.TECHNIQUES)
    assert all(why.startswith("does not apply: ") for why in plan.absent.values())


def test_groups_leave_room_for_the_baseline() -> None:
    assert list(groups(["a", "b", "c", "d", "e"], 6)) == [["a", "b", "c", "d", "e"]]
    assert list(groups(["a", "b", "c"], 3)) == [["a", "b"], ["c"]]
    assert list(groups(["a", "b"], 2)) == [["a"], ["b"]]


def test_a_gpu_is_fed_by_several_processes_unless_the_options_say_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "cores", lambda: 12)
    assert bench_plan(TINY, BenchConfig(amp_level="O0")).config.workers == 1
    monkeypatch.setattr(hardware, "device_type", lambda: "cuda")
    assert bench_plan(TINY, BenchConfig(amp_level="O0")).config.workers == 12
    assert bench_plan(TINY, BenchConfig(amp_level="O0", workers=3)).config.workers == 3


def test_the_best_of_the_others_is_the_one_that_ours_has_the_smallest_lead_over() -> None:
    def best(leads: dict[str, float], among: tuple[str, ...] = BEST) -> str | None:
        rows = {name: Row(None) for name in VARIANTS}
        ratios = [(name, "ours", r, r * 0.9, r * 1.1) for name, r in leads.items()]
        return best_of_others(Outcome("d", "2026-01-01", 1.0, None, {}, {}, rows, ratios), among)

    leads = {
        "torch.compile-best": 1.2,
        "accelerate-best": 1.15,
        "fabric-best": 1.3,
        "eager-best": 1.4,
        "torch.compile": 1.1,
    }
    assert best(leads) == "accelerate-best" and best(leads, PEERS) == "torch.compile"
    assert best({"torch.compile-best": 1.2, "eager-best": 0.9}) == "eager-best"
    # What lacks parity or did not run has no ratio.
    assert best({"fabric-best": 1.5}) == "fabric-best" and best({"eager-O1": 1.5}) is None


def test_what_is_compared_takes_turns_together() -> None:
    assert sorted(VARIANTS) == sorted(TURN_ORDER) and len(set(VARIANTS)) == len(VARIANTS)
    assert set(TURN_ORDER[: 1 + len(BEST)]) == {"ours", *BEST}
    assert set(GROUPS["as-it-comes"]) == {plain_name(name) for name in BEST} - {"eager"}

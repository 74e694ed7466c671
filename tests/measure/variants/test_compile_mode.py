"""How torch.compile's mode is chosen for the best forms of the peers, and what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_task

from gallery_lib.config import BenchConfig, LaunchConfig
from gallery_lib.console.progress import Progress
from gallery_lib.console.table import number
from gallery_lib.errors import RunFailed
from gallery_lib.measure.bench.plan import Plan, bench_plan
from gallery_lib.measure.comparison import interleaved
from gallery_lib.measure.comparison.interleaved import Measurement
from gallery_lib.measure.comparison.plan import Turns, Variant
from gallery_lib.measure.variants import compile_mode
from gallery_lib.measure.variants.compile_mode import Choice, decide
from gallery_lib.system import hardware

TINY = f"{tiny_task.__file__}:TASK"
DEFAULT, AUTOTUNE = "default", "max-autotune-no-cudagraphs"


def turns(seconds: float) -> list[list[float]]:
    return [[seconds] * 3 for _ in range(4)]


@pytest.mark.parametrize(
    ("other_seconds", "mode"), [(0.099, DEFAULT), (0.09, AUTOTUNE), (0.12, DEFAULT)]
)
def test_another_mode_has_to_be_faster_than_the_default_one_by_more_than_noise(
    other_seconds: float, mode: str
) -> None:
    choice = decide({DEFAULT: turns(0.1), AUTOTUNE: turns(other_seconds)}, {})
    assert choice.mode == mode
    assert (
        choice.comparison == f"default 100 ms, {AUTOTUNE} {number(other_seconds * 1000)} ms "
        f"({0.1 / other_seconds:.2f} times as fast)"
    )


def test_a_mode_that_is_dropped_is_named_with_its_reason() -> None:
    choice = decide(
        {DEFAULT: turns(0.1)}, {AUTOTUNE: "its start-up took longer than the limit of 300 s"}
    )
    assert choice == Choice(
        DEFAULT,
        f"default 100 ms, {AUTOTUNE} dropped: its start-up took longer than the limit of 300 s",
    )
    assert decide({AUTOTUNE: turns(0.1)}, {DEFAULT: "it failed"}).mode == AUTOTUNE
    assert decide({}, {DEFAULT: "it failed", AUTOTUNE: "it failed"}).mode == DEFAULT


def plan(**values: Any) -> Plan:
    return bench_plan(TINY, BenchConfig(amp_level="O0", **values))


def choose(plan: Plan, folder: Path) -> Choice:
    return compile_mode.choose(plan.config, plan.modes, folder, Progress(enabled=False), "tiny")


def test_what_was_found_is_kept_for_the_same_task_options_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))
    tried: list[dict[str, Variant]] = []

    def take_turns(variants: dict[str, Variant], *_: Any, **__: Any) -> dict[str, Any]:
        tried.append(variants)
        return {
            mode: Measurement(None, {}, turns(0.1 if mode == DEFAULT else 0.05))
            for mode in variants
        }  # type: ignore[arg-type]

    monkeypatch.setattr(interleaved, "take_turns", take_turns)
    first, again = (choose(plan(), tmp_path) for _ in range(2))
    assert first == again and first.mode == AUTOTUNE and len(tried) == 1
    limits = {mode: variant.start_up_limit_seconds for mode, variant in tried[0].items()}
    # The mode that others are compared with must not drop out.
    assert limits == {
        DEFAULT: None,
        AUTOTUNE: compile_mode.START_UP_LIMIT_SECONDS,
    }
    choose(plan(batch_size=4), tmp_path)
    assert len(tried) == 2
    for path in (tmp_path / "cache" / "compile_modes").iterdir():
        path.write_text('{"mode": "fastest", "comparison": ""}')
    choose(plan(), tmp_path)
    assert len(tried) == 3 and list((tmp_path / "cache" / "compile_modes").glob("*.damaged"))


def test_nothing_is_kept_where_no_mode_could_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))

    def take_turns(
        variants: dict[str, Variant], *_: Any, dropped: dict[str, Exception], **__: Any
    ) -> dict[str, Any]:
        dropped |= {
            mode: RunFailed("the run in /x did not finish: no compiler\nmore") for mode in variants
        }
        return {}

    monkeypatch.setattr(interleaved, "take_turns", take_turns)
    assert (
        choose(plan(), tmp_path).comparison
        == f"default dropped: no compiler, {AUTOTUNE} dropped: no compiler"
    )
    assert not (tmp_path / "cache" / "compile_modes").exists()


def test_all_best_forms_that_are_compiled_get_the_mode_and_no_other_variant() -> None:
    before = plan()
    after = before.with_mode(AUTOTUNE)
    for name, variant in after.variants.items():
        compiled = name.endswith("-best") and name != "eager-best"
        assert (AUTOTUNE in variant.recipe) == compiled == (name in before.in_best_mode)
        assert compiled or variant == before.variants[name]


@pytest.mark.parametrize(
    ("asked", "tried"), [(None, [DEFAULT, AUTOTUNE]), ("default", []), (AUTOTUNE, [])]
)
def test_with_one_mode_there_is_nothing_to_find_out(
    asked: str | None, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "device_type", lambda: "cpu")
    one = plan(peer_modes=asked)
    assert list(one.modes) == tried
    assert list(one.variants["torch.compile-best"].recipe)[-1] == (asked or DEFAULT)
    # Nothing of these is compiled by torch.compile's modes.
    assert not plan(variants="eager-best,ours").modes


@pytest.mark.slow
def test_a_variant_whose_start_up_takes_too_long_drops_out_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    quick = Variant(tiny_task.config())
    slow = Variant(tiny_task.config("SLEEPING"), start_up_limit_seconds=1.0)
    dropped: dict[str, Any] = {}
    found = interleaved.take_turns(
        {"quick": quick, "slow": slow},
        LaunchConfig(),
        Turns(4, 4, 2, 1),
        tmp_path,
        Progress(enabled=False),
        "tiny",
        dropped=dropped,
    )
    assert list(found) == ["quick"]
    assert (
        interleaved.reason_of(dropped["slow"]) == "its start-up took longer than the limit of 1 s"
    )

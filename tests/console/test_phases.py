"""Phases of a run: what it records, what the waiting user sees, and expected durations.

Earlier runs give the expected durations.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gallery_lib.compiler import compilations
from gallery_lib.console.expected_durations import Durations
from gallery_lib.console.phases import (
    DATA,
    IMPORTS,
    MODEL,
    PHASES_FILE,
    TRAINING,
    WARM_UP,
    Phase,
    PhaseLog,
    read_phases,
    seconds_by_phase,
)
from gallery_lib.console.progress import Progress
from gallery_lib.kernels.runtime import builds
from gallery_lib.launcher.run_view import RunView
from gallery_lib.system.processes import now as clock_now

COMMAND = {"model": "alexnet", "compiler_opt": True}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def compiler_cache(tmp_path: Path) -> Path:
    return tmp_path / "inductor"


def fill(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "graph").touch()


def test_phases_are_read_in_their_order_with_what_is_counted(tmp_path: Path) -> None:
    assert read_phases(tmp_path) == []
    log = PhaseLog(tmp_path)
    log.begin(DATA)
    log.begin(TRAINING, count=3, total=40)
    phases = read_phases(tmp_path)
    assert [(phase.name, phase.count, phase.total) for phase in phases] == [
        (DATA, 0, None),
        (TRAINING, 3, 40),
    ]
    assert phases[0].began <= phases[1].began <= clock_now()


def test_after_a_compilation_goes_on_what_was_there_before(tmp_path: Path) -> None:
    log = PhaseLog(tmp_path)
    log.begin(WARM_UP)
    for _ in range(2):
        log.compilation_began()
        log.compilation_ended()
    assert [phase.label for phase in read_phases(tmp_path)] == [
        *("warm-up", "compiling, graph 1"),
        *("warm-up", "compiling, graph 2"),
        "warm-up",
    ]


def test_compilations_of_forward_and_backward_and_builds_of_own_kernels_are_noticed() -> None:
    said: list[str] = []
    with compilations.observed(
        lambda: said.append("graph"), lambda: said.append("build"), lambda: said.append("done")
    ):
        model = torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")
        model(torch.ones(1, 2)).sum().backward()
        first = list(said)
        model(torch.ones(1, 2)).sum().backward()
        assert (
            said == first and said.count("graph") >= 1 and said[1::2] == ["done"] * (len(said) // 2)
        )
        with builds.under_way():
            assert said[-1] == "build"
        assert said[-1] == "done"
    counted = len(said)
    torch.compile(torch.nn.Linear(3, 3), backend="eager")(torch.ones(1, 3))
    assert len(said) == counted


def test_other_ranks_note_nothing(tmp_path: Path) -> None:
    PhaseLog(tmp_path, enabled=False).begin(DATA)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    PhaseLog(tmp_path / "file").begin(DATA)  # no folder can be made there


def test_the_seconds_of_a_phase_that_came_back_count_together() -> None:
    phases = [
        Phase(WARM_UP, 10.0),
        Phase("compiling", 12.0, 1),
        Phase(WARM_UP, 40.0),
        Phase(TRAINING, 43.0),
    ]
    assert seconds_by_phase(phases, 50.0) == {
        "warm-up": 5.0,
        "compiling, graph 1": 28.0,
        "training": 7.0,
    }


def view(tmp_path: Path, compiler_cache: Path, **values: Any) -> RunView:
    progress = Progress(line_seconds=0.0)
    return RunView(
        progress, tmp_path / "run", Phase(IMPORTS, clock_now()), COMMAND, compiler_cache, **values
    )


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Return the labels of what was shown since the last call."""
    return lambda: [line.rpartition(":")[0] for line in capsys.readouterr().err.splitlines()]


def test_every_phase_is_shown_also_what_passes_between_two_looks(
    tmp_path: Path, compiler_cache: Path, lines: Callable[[], list[str]]
) -> None:
    shown, now = view(tmp_path, compiler_cache, name="alexnet"), clock_now()
    shown.look()
    begun = [
        Phase(DATA, now + 1),
        Phase(MODEL, now + 2),
        Phase(TRAINING, now + 3),
        Phase(WARM_UP, now + 3.001),
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / PHASES_FILE).write_text(json.dumps([vars(phase) for phase in begun]))
    shown.look()
    shown.look()
    assert lines() == [
        f"alexnet: {phase}" for phase in ("imports", "data", "model", "warm-up", "warm-up")
    ]


def test_steps_are_counted_where_they_are_steady(
    tmp_path: Path, compiler_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = view(tmp_path, compiler_cache)
    PhaseLog(tmp_path / "run").begin(TRAINING, count=3, total=40)
    (tmp_path / "run" / "steps.jsonl").write_text('{"step": 20}\n')
    shown.look()
    assert "training: 20 of 40 steps, 0 s" in capsys.readouterr().err


def test_a_first_run_has_nothing_to_expect(compiler_cache: Path) -> None:
    durations = Durations(COMMAND, compiler_cache)
    assert durations.expected("compiling, graph 1") is None and durations.graphs() is None


def test_compilation_is_expected_to_take_as_long_as_with_the_same_state_of_the_cache(
    compiler_cache: Path,
) -> None:
    # The cache was empty.
    Durations(COMMAND, compiler_cache).keep({"compiling, graph 1": 60.0, "training": 20.0})
    fill(compiler_cache)
    second = Durations(COMMAND, compiler_cache)
    assert second.expected("compiling, graph 1") is None  # what a warm cache gives is not known yet
    assert (second.expected("training"), second.graphs()) == (20.0, None)
    second.keep({"compiling, graph 1": 12.0, "training": 22.0})
    assert Durations(COMMAND, compiler_cache).expected("compiling, graph 1") == 12.0
    again = Durations(COMMAND, compiler_cache.with_name("empty"))
    assert (again.expected("compiling, graph 1"), again.graphs()) == (60.0, 1)


def test_a_cache_that_others_have_filled_is_no_grounds(compiler_cache: Path) -> None:
    fill(compiler_cache)
    Durations(COMMAND, compiler_cache).keep({"compiling, graph 1": 60.0})
    assert Durations(COMMAND, compiler_cache).expected("compiling, graph 1") is None


def test_runs_that_differ_a_lot_and_phases_that_depend_on_the_moment_are_no_grounds(
    compiler_cache: Path,
) -> None:
    for seconds in (20.0, 40.0):
        Durations(COMMAND, compiler_cache).keep(
            {"training": seconds, "imports": 20.0, "data": 20.0}
        )
    durations = Durations(COMMAND, compiler_cache)
    assert [durations.expected(label) for label in ("training", "imports", "data")] == [
        None,
        None,
        None,
    ]


def test_another_command_has_durations_of_its_own(compiler_cache: Path) -> None:
    Durations(COMMAND, compiler_cache).keep({"training": 20.0})
    assert Durations({**COMMAND, "batch_size": 3}, compiler_cache).expected("training") is None
    assert Durations(COMMAND, compiler_cache).expected("training") == 20.0


def test_the_number_of_graphs_is_said_where_it_is_known(
    tmp_path: Path, compiler_cache: Path, lines: Callable[[], list[str]]
) -> None:
    Durations(COMMAND, compiler_cache).keep({"compiling, graph 1": 5.0, "compiling, graph 2": 5.0})
    shown, log = view(tmp_path, compiler_cache), PhaseLog(tmp_path / "run")
    for _ in range(3):
        log.compilation_began()
        time.sleep(0.06)
        shown.look()
    assert lines() == ["compiling, graph 1 of 2", "compiling, graph 2 of 2", "compiling, graph 3"]

"""Phases of a run: what it records, and what the waiting user sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gallery_lib.compiler import notices
from gallery_lib.console.progress import (
    DATA,
    IMPORTS,
    MODEL,
    PHASES_FILE,
    TRAINING,
    WARM_UP,
    Phase,
    PhaseLog,
    Progress,
    read_phases,
)
from gallery_lib.kernels.runtime import kept_code
from gallery_lib.launcher.job import RunView
from gallery_lib.system.processes import now as clock_now


def test_phases_are_read_in_their_order_with_what_is_counted(tmp_path: Path) -> None:
    assert read_phases(tmp_path) == []
    log = PhaseLog(tmp_path)
    log.begin(WARM_UP)
    for _ in range(2):
        log.compilation_began()
        log.compilation_ended()
    log.begin(TRAINING, count=3, total=40)
    phases = read_phases(tmp_path)
    assert [phase.name for phase in phases] == [
        *("warm-up", "compiling, graph 1", "warm-up", "compiling, graph 2", "warm-up"),
        "training",
    ]
    assert (phases[-1].count, phases[-1].total) == (3, 40)
    assert phases[0].began <= phases[-1].began <= clock_now()


def test_notices_of_forward_and_backward_and_builds_of_own_kernels_are_noticed() -> None:
    said: list[str] = []
    with notices.observed(
        lambda: said.append("graph"), lambda: said.append("build"), lambda: said.append("done")
    ):
        model = torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")
        model(torch.ones(1, 2)).sum().backward()
        first = list(said)
        model(torch.ones(1, 2)).sum().backward()
        assert (
            said == first and said.count("graph") >= 1 and said[1::2] == ["done"] * (len(said) // 2)
        )
        with kept_code.build():
            assert said[-1] == "build"
        assert said[-1] == "done"
    counted = len(said)
    torch.compile(torch.nn.Linear(3, 3), backend="eager")(torch.ones(1, 3))
    assert len(said) == counted


def test_other_ranks_note_nothing_and_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    PhaseLog(tmp_path, enabled=False).begin(DATA)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    PhaseLog(tmp_path / "file").begin(DATA)  # no folder can be made there


def test_every_phase_is_shown_with_its_steps_also_what_passes_between_two_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now, progress = clock_now(), Progress(line_seconds=0.0)
    shown = RunView(progress, tmp_path / "run", Phase(IMPORTS, now - 9), "alexnet")
    shown.look()
    begun = [
        Phase(DATA, now - 8),
        Phase(MODEL, now - 7),
        Phase(TRAINING, now - 6),
        Phase(WARM_UP, now - 5.999, 3, 40),
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "steps.jsonl").write_text('{"step": 20}\n')
    (tmp_path / "run" / PHASES_FILE).write_text(json.dumps([vars(phase) for phase in begun]))
    shown.look()
    shown.look()
    said = [line.rpartition(" ")[0] for line in capsys.readouterr().err.splitlines()]
    steps = "warm-up: 20 of 40 steps, 5"
    phases = ("imports: 9", "data: 8", "model: 7", steps, steps)
    assert said == [f"alexnet: {phase}" for phase in phases]

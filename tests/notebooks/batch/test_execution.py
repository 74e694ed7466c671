"""A notebook that runs: what its progress says."""

from __future__ import annotations

from pathlib import Path

from gallery_lib.console.phases import TRAINING, TURNS, PhaseLog
from gallery_lib.notebooks.batch import evidence
from gallery_lib.notebooks.batch.schedule import progress

CELLS = [*["import this"] * 4, "settings = 1\ntrain(settings)", *["show()"] * 4]


def test_progress_tells_the_cell_and_the_phase_of_the_run_that_is_at_work(tmp_path: Path) -> None:
    assert progress(tmp_path, CELLS) == "starting"
    (tmp_path / evidence.LOG_FILE).write_text(
        "Executing Cell 4-----\nEnding Cell 4-----\nExecuting Cell 5-----\n"
    )
    assert progress(tmp_path, CELLS) == "cell 5 of 9, train(settings)"
    waiting, run = (
        tmp_path / evidence.RUNS_FOLDER / "compare" / name for name in ("baseline", "compiler-opt")
    )
    PhaseLog(waiting).begin(TURNS)
    phases = PhaseLog(run)
    phases.compilation_began()
    assert progress(tmp_path, CELLS) == "cell 5 of 9, train(settings), compiling, graph 1"
    phases.begin(TRAINING, total=66)
    (run / "config.json").write_text('{"max_steps": 66}')
    (run / "steps.jsonl").write_text('{"step": 40}\n')
    assert progress(tmp_path, CELLS) == "cell 5 of 9, train(settings), training, step 40 of 66"
    for run_dir in (waiting, run):
        (run_dir / "results.json").write_text("{}")
    assert progress(tmp_path, CELLS) == "cell 5 of 9, train(settings)"

"""Several notebooks at a time: as many as devices and memory allow, each on its own share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from refusal import refused

from gallery_lib.config import BatchConfig
from gallery_lib.console.phases import TRAINING, TURNS, PhaseLog
from gallery_lib.notebooks.batch import evidence
from gallery_lib.notebooks.batch.execution import progress
from gallery_lib.notebooks.batch.shares import check, shares
from gallery_lib.system import hardware

SMALL = [(f"notebook{i}", {}) for i in range(200)]


def test_one_at_a_time_has_the_whole_machine() -> None:
    (share,) = shares(1)
    assert (share.prefix, share.environment) == ([], {})
    check(BatchConfig(), SMALL)


def test_more_notebooks_at_a_time_than_devices_are_refused() -> None:
    with refused("jobs", 150, re.compile(r"at most \d+ ")):
        check(BatchConfig(jobs=150), SMALL)


def test_limits_that_together_exceed_the_memory_are_refused() -> None:
    too_much = hardware.memory_bytes() / 2**30 * 1.1
    with refused("memory_limit", f"memory_limit={too_much}", re.compile("has .* GiB of memory")):
        check(BatchConfig(memory_limit=too_much), SMALL)


@pytest.mark.whole_machine
def test_notebooks_whose_estimates_do_not_fit_together_are_refused() -> None:
    if hardware.gpu_count() > 0 or hardware.cores() < 2:
        pytest.skip("needs two CPU cores, and no GPU, whose memory nobody asks about")
    large = {"batch_size": 4000, "image_size": 224}
    with refused("jobs", 2, "the 2 largest", re.compile(r"about [\d.]+ GiB")):
        check(BatchConfig(jobs=2), [("alexnet", large), ("vgg16", large), ("index", {})])
    check(BatchConfig(jobs=2), [("index", {}), ("your_model", {})])


@pytest.mark.whole_machine
def test_a_share_confines_its_command_to_cores_of_its_own() -> None:
    if hardware.cores() < 2:
        pytest.skip("one core cannot be shared out")
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    seen = []
    for share in shares(2):
        result = subprocess.run(
            [*share.prefix, sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        seen.append(set(map(int, result.stdout.strip("[]\n").split(","))))
    assert seen[0] | seen[1] == os.sched_getaffinity(0)
    assert not seen[0] & seen[1]


def test_progress_tells_the_cell_and_the_phase_of_the_run_that_is_at_work(tmp_path: Path) -> None:
    assert progress(tmp_path, 9) == "starting"
    (tmp_path / evidence.LOG_FILE).write_text(
        "Executing Cell 4-----\nEnding Cell 4-----\nExecuting Cell 5-----\n"
    )
    assert progress(tmp_path, 9) == "cell 5 of 9"
    waiting, run = (
        tmp_path / evidence.RUNS_FOLDER / "compare" / name for name in ("baseline", "compiler-opt")
    )
    PhaseLog(waiting).begin(TURNS)
    phases = PhaseLog(run)
    phases.compilation_began()
    assert progress(tmp_path, 9) == "cell 5 of 9, compiling, graph 1"
    phases.begin(TRAINING, total=66)
    (run / "config.json").write_text('{"max_steps": 66}')
    (run / "steps.jsonl").write_text('{"step": 40}\n')
    assert progress(tmp_path, 9) == "cell 5 of 9, training, step 40 of 66"
    for run_dir in (waiting, run):
        (run_dir / "results.json").write_text("{}")
    assert progress(tmp_path, 9) == "cell 5 of 9"

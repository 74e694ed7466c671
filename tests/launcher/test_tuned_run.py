"""A run with `--tune`: its terminal and `gallery show` say why it runs as it does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_task

from gallery_lib.train.results import read_steps


@pytest.mark.slow
def test_the_table_of_candidates_is_shown_and_no_printed_time_holds_the_tuning(
    checkout: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "GALLERY_CACHE_DIR": str(tmp_path / "cache")}

    def said(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run = tmp_path / "run"
    training = said(
        str(checkout / "launch_single_task.py"),
        *(f"--model={tiny_task.__file__}:TASK", "--compiler-opt", "--tune", "--workers=0"),
        *("--max_steps=12", "--log_interval=12", "--threads=1", f"--run_dir={run}"),
    )
    table = training.partition("Why it runs so")[2]
    assert "over eager (interval)" in table and "gradient norms differ by" in table
    assert re.search(r"^eager +.*baseline$", table, re.MULTILINE)
    assert re.search(r"runs as `.*` \(measured now on the first batch\)", table)
    assert len(list((tmp_path / "cache" / "tuning").glob("*.json"))) == 1
    assert table.partition("results:")[0].strip() in said("-m", "gallery_lib", "show", str(run))
    (line,) = read_steps(run)
    counted = line["each_step_seconds"][3:]
    assert line["step_seconds"] == pytest.approx(sum(counted) / len(counted))
    assert line["each_step_seconds"][0] > 10 * line["step_seconds"]

"""Ranks of a run: what a training process does before it begins, and who is named when one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_task import config as tiny_config

from gallery_lib.launcher.forked import Ending, report_killed
from gallery_lib.system.files import read_json
from gallery_lib.train.failure import ErrorReport
from gallery_lib.train.resolved import Run, resolve


@pytest.mark.parametrize(
    ("codes", "blamed"),
    [
        ((None, None), None),
        ((1, None), None),
        ((1, -signal.SIGKILL), 1),
        ((-signal.SIGTERM, -signal.SIGKILL), 1),
        ((-signal.SIGTERM, -signal.SIGABRT), 1),
        ((-signal.SIGABRT, -signal.SIGKILL), 1),
        ((-signal.SIGKILL, -signal.SIGKILL), 0),
    ],
)
def test_the_one_that_somebody_else_has_killed_is_reported_by_its_rank_in_the_run(
    codes: tuple[int | None, ...], blamed: int | None, tmp_path: Path
) -> None:
    resolved = resolve(tiny_config(), local_processes=2, run_dir=str(tmp_path))
    run = Run(resolved, world_size=4, local_processes=2, host=1)
    endings = {rank: Ending(100 + rank, code) for rank, code in enumerate(codes)}
    assert report_killed(run, endings) == blamed
    reports = [read_json(path, ErrorReport, again="") for path in tmp_path.iterdir()]
    assert [report.rank for report in reports] == ([] if blamed is None else [2 + blamed])
    assert all(f"process {100 + (blamed or 0)}" in report.message for report in reports)


IN_A_WORKER = """
import gc, sys
from gallery_lib.launcher import worker
assert "torch" not in sys.modules
worker.preload()
print("torch._dynamo" in sys.modules, "torch._inductor.compile_fx" in sys.modules, \
gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiler_opt", [False, True])
def test_preloading_imports_the_compiler_where_the_run_uses_it(compiler_opt: bool) -> None:
    environment = {**os.environ, "GALLERY_COMPILER_OPT": str(int(compiler_opt))}
    shown = subprocess.run(
        [sys.executable, "-c", IN_A_WORKER],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert shown.stdout.split() == ["True", str(compiler_opt), "True", "True"]

"""The rank that is blamed when signals have ended processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tiny_task import config

from gallery_lib.launcher import killed_ranks
from gallery_lib.launcher.description import RunDescription
from gallery_lib.launcher.killed_ranks import Ending
from gallery_lib.system.json_files import read_json
from gallery_lib.train.failure import ErrorReport
from gallery_lib.train.resolved import resolve


@pytest.mark.parametrize(
    ("codes", "blamed"),
    [
        ((None, None), None),
        ((1, None), None),
        ((1, -signal.SIGKILL), 1),
        ((-signal.SIGTERM, -signal.SIGKILL), 1),
        ((-signal.SIGTERM, -signal.SIGABRT), 1),
        ((-signal.SIGABRT, -signal.SIGKILL), 1),
        ((1, -signal.SIGTERM), 1),
        ((-signal.SIGKILL, -signal.SIGKILL), 0),
    ],
)
def test_the_one_that_somebody_else_has_killed(
    codes: tuple[int | None, ...], blamed: int | None
) -> None:
    endings = {rank: Ending(100 + rank, code) for rank, code in enumerate(codes)}
    assert killed_ranks.killed_rank(endings) == blamed


def test_the_report_has_the_rank_of_the_whole_run(tmp_path: Path) -> None:
    resolved = resolve(config(), local_processes=2, run_dir=str(tmp_path))
    run = RunDescription(resolved, world_size=4, local_processes=2, host=1)
    assert not killed_ranks.report(run, {0: Ending(42, 1), 1: Ending(43, None)})
    assert killed_ranks.report(run, {0: Ending(42, 1), 1: Ending(43, -signal.SIGKILL)})
    (path,) = tmp_path.iterdir()
    report = read_json(path, ErrorReport, again="")
    assert (report.rank, report.signal) == (3, signal.SIGKILL) and "process 43" in report.message

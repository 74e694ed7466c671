"""Parts of a launch: the run's folder, waiting ranks, and who is named when one ends."""

from __future__ import annotations

import multiprocessing
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from refusal import refused
from tiny_task import config as tiny_config

from gallery_lib.errors import InputError
from gallery_lib.launcher.forked import Ending, report_killed
from gallery_lib.launcher.preflight import checked_folder, locked_for_host
from gallery_lib.launcher.torchrun import _Finished
from gallery_lib.system.files import read_json
from gallery_lib.train.failure import ErrorReport
from gallery_lib.train.resolved import Run, resolve


def test_a_new_folder_is_made_and_what_a_broken_off_run_left_is_accepted(tmp_path: Path) -> None:
    folder = checked_folder(str(tmp_path / "a" / "b"))
    for name in ("config.json", "steps.jsonl", "log-rank12.txt", "launcher-host0.txt", "slurm-7"):
        (folder / name).touch()
    assert checked_folder(str(folder)) == folder
    checked_folder(str(tmp_path / "only asked"), make=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_folders_that_will_not_do_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("done/results.json", "full/a", "full/b", "full/c", "full/d", "full/e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name, value in {
        "--x": "./--x",
        str(tmp_path / "file"): "is a file",
        str(tmp_path / "full"): "(a, b, c and 2 more)",
        str(tmp_path / "done"): "finished run",
        str(tmp_path / ("x" * 300)): re.compile("[Ff]ile name too long"),
        str(tmp_path / "file" / "below"): "cannot be used",
    }.items():
        with refused("run_dir", name, value):
            checked_folder(name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done", "file", "full"]


def _held_elsewhere(folder: Path) -> str:
    try:
        with locked_for_host(folder, 0):
            return "free"
    except InputError as error:
        return str(error)


def test_a_second_process_is_refused_until_the_first_lets_go_and_hosts_share_a_folder(
    tmp_path: Path,
) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with locked_for_host(tmp_path, 0), locked_for_host(tmp_path, 1):
            assert "another run is at work in it" in pool.apply(_held_elsewhere, (tmp_path,))
        assert pool.apply(_held_elsewhere, (tmp_path,)) == "free"
    assert list(tmp_path.iterdir()) == []


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
    assert report_killed(endings, run.run_dir, run.first_rank) == blamed
    reports = [read_json(path, ErrorReport, again="") for path in tmp_path.iterdir()]
    assert [report.rank for report in reports] == ([] if blamed is None else [2 + blamed])
    assert all(f"process {100 + (blamed or 0)}" in report.message for report in reports)


def test_a_rank_that_is_killed_while_it_waits_for_the_others_does_not_block_torchrun() -> None:
    finished = _Finished()
    ranks = [multiprocessing.get_context("fork").Process(target=finished.wait) for _ in range(2)]
    for rank in ranks:
        rank.start()
    ranks[0].kill()
    ranks[0].join(10)
    finished.set()
    ranks[1].join(10)
    assert [rank.exitcode for rank in ranks] == [-signal.SIGKILL, 0]


PRELOADS = """
import gc, sys, gallery_lib.launcher.worker as worker
assert "torch" not in sys.modules
worker.preload()
assert gc.isenabled() and gc.get_freeze_count() > 100_000
print(*sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiler_opt", [False, True])
def test_preloading_imports_the_compiler_where_the_run_uses_it(
    compiler_opt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLERY_COMPILER_OPT", str(int(compiler_opt)))
    shown = subprocess.check_output([sys.executable, "-c", PRELOADS], text=True, timeout=120)
    modules = shown.split()
    assert "torch._dynamo" in modules
    assert ("torch._inductor.compile_fx" in modules) is compiler_opt

"""The reason of a failed run is told from the files it left, whichever rank failed first."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from gallery_lib.errors import Diverged, InputError, OutOfMemory, RunFailed, SilentRank
from gallery_lib.system.processes import SOCKETS_VARIABLE
from gallery_lib.train import failure
from gallery_lib.train.failure import ErrorReport


def told(folder: Path, text: str = "", code: int = 1, *, compiled_first: bool = False) -> str:
    return str(failure.of_run(folder, code, text, ["a line"], compiled_first=compiled_first))


def test_the_rank_that_was_killed_is_named_though_another_failed_for_want_of_it(
    tmp_path: Path,
) -> None:
    ErrorReport(0, "RuntimeError", "Connection closed by peer").write(tmp_path)
    ErrorReport.of_killed(1, 43, signal.SIGKILL).write(tmp_path)
    assert (
        "rank 1 (process 43) was killed by SIGKILL: by someone, or by the kernel because memory "
        "ran out" in told(tmp_path)
    )


def test_a_silent_rank_and_a_diverged_run_come_before_all_else(tmp_path: Path) -> None:
    ErrorReport(0, "SilentRank", "rank 1 gives no sign of life").write(tmp_path)
    ErrorReport.of_killed(1, 42, signal.SIGKILL).write(tmp_path)
    found = failure.of_run(tmp_path, 1, "", [], compiled_first=False)
    assert (
        isinstance(found, SilentRank)
        and str(found) == f"the run in {tmp_path}: rank 1 gives no sign of life."
    )
    (tmp_path / "error-rank0.json").unlink()
    ErrorReport(1, "Diverged", "its loss is no finite number").write(tmp_path)
    assert isinstance(failure.of_run(tmp_path, 1, "", [], compiled_first=False), Diverged)


def test_bad_input_of_one_rank_is_bad_input(tmp_path: Path) -> None:
    ErrorReport(0, "RuntimeError", "gone").write(tmp_path)
    ErrorReport(
        1, "InputError", "batch_size=0 is too small", exit_code=2, parameter="batch_size"
    ).write(tmp_path)
    found = failure.of_run(tmp_path, 1, "", [], compiled_first=False)
    assert isinstance(found, InputError) and found.parameter == "batch_size"
    assert str(found) == "batch_size=0 is too small"


def test_a_report_that_the_run_s_folder_cannot_take_is_read_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKETS_VARIABLE, str(tmp_path))
    ErrorReport(0, "RunFailed", "its results are lost").write(tmp_path / "not there")
    found = failure.of_run(
        tmp_path / "not there", 1, "", [], compiled_first=False, in_memory=tmp_path
    )
    assert isinstance(found, RunFailed) and str(found).endswith(": its results are lost.")


def test_files_that_are_no_reports_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "error-rank0.json").write_text("{")
    assert "its processes ended with exit code 1" in told(tmp_path, "the last words")


@pytest.mark.parametrize(
    ("code", "traceback", "killed_by", "compiled_first", "suspects"),
    [
        (128 + 7, "", None, True, True),
        (128 + 7, "", None, False, False),
        (1, "", signal.SIGBUS, True, True),
        (1, "", signal.SIGKILL, True, False),
        (1, 'File "/x/torch/_inductor/codecache.py", line 1', None, True, True),
        (1, 'File "/x/torch/nn/modules/linear.py", line 1', None, True, False),
        (128 + 9, "", None, True, False),
    ],
)
def test_kept_code_is_suspected_where_it_may_be_to_blame(
    tmp_path: Path,
    code: int,
    traceback: str,
    killed_by: signal.Signals | None,
    compiled_first: bool,
    suspects: bool,
) -> None:
    if traceback:
        ErrorReport(0, "OSError", "file too short", traceback=traceback).write(tmp_path)
    if killed_by:
        ErrorReport.of_killed(0, 42, killed_by).write(tmp_path)
    found = failure.of_run(tmp_path, code, "", [], compiled_first=compiled_first)
    assert isinstance(found, RunFailed) and found.suspects_compiled_code is suspects


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a"),
            "the memory of the GPU ran out when 20.00 MiB were asked for. Use a smaller batch",
        ),
        (RuntimeError("CUDA error: out of memory\nSearch for"), "the memory of the GPU ran out."),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "the memory of the host ran out.",
        ),
        (MemoryError(), "the memory of the host ran out."),
    ],
)
def test_memory_that_ran_out_is_told_with_what_to_do(error: BaseException, words: str) -> None:
    around = RuntimeError("backend='inductor' raised")
    around.__cause__ = error
    for one in (error, around):
        told_by = failure.what_ran_out(one)
        assert told_by is not None and told_by.startswith(words) and "--batch_size" in told_by
    assert failure.what_ran_out(RuntimeError("an index is out of range")) is None


def test_a_rank_without_memory_is_told_before_the_ranks_that_miss_it(tmp_path: Path) -> None:
    ErrorReport(0, "RuntimeError", "Connection closed by peer", traceback="frames").write(tmp_path)
    lack = "rank 1: the memory of the GPU ran out"
    ErrorReport(1, "OutOfMemory", lack, own_line="cell, line 3: x = y").write(tmp_path)
    found = failure.of_run(tmp_path, 1, "", [], compiled_first=False)
    assert isinstance(found, OutOfMemory) and "frames" not in str(found)
    assert str(found).endswith("the memory of the GPU ran out.\n  cell, line 3: x = y")


def test_of_ranks_that_failed_the_first_is_named(tmp_path: Path) -> None:
    for rank, at in ((0, 2), (1, 1)):
        ErrorReport(rank, "ValueError", "planted").write(tmp_path)
        os.utime(tmp_path / f"error-rank{rank}.json", (at, at))
    assert "rank 1 failed with ValueError" in told(tmp_path)

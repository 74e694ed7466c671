"""results.json is written whole or not at all."""

import resource
from pathlib import Path
from typing import Any

import made_comparison
import pytest
from refusal import refused

from gallery_lib.train.results import RunLog, read_results, read_steps, write_results


def test_a_line_of_the_log_may_hold_a_name_that_is_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(tmp_path)
    log.say("data_dir=a\udcff")
    log.close()
    assert (
        (tmp_path / "log-rank0.txt").read_text() == capsys.readouterr().out == "data_dir=a\\udcff\n"
    )


def test_a_disk_that_is_full_for_a_while_costs_lines_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit on the size of files stands for the disk: writing beyond it fails alike."""
    log, before = RunLog(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    values: dict[str, Any] = {"loss": 1.0, "learning_rate": 0.1, "step_seconds": [0.1], "epoch": 0}
    values |= {"batch_size": 8, "warmup": 0, "world_size": 1, "peak_memory_bytes": 0}
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        for number in range(1, 100):
            log.step(step=number, **values)
        log.parameters({})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.step(step=100, **values)
    log.close()
    steps = [line["step"] for line in read_steps(tmp_path)]
    assert steps[0] == 1 and steps[-1] == 100 and steps == sorted(steps)
    shown = capsys.readouterr().out
    assert shown.count("cannot be written to") == 1 and shown.count("epoch 0") == 100


def test_results_come_back_as_they_were_written_and_are_not_written_over(tmp_path: Path) -> None:
    with refused(tmp_path / "results.json", "log-rank0.txt"):
        read_results(tmp_path)
    results = made_comparison.results(1.0)
    write_results(tmp_path, results)
    assert read_results(tmp_path) == results
    with refused("run_dir", tmp_path):
        RunLog(tmp_path)


def test_only_complete_lines_of_a_running_log_are_read(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert [line["step"] for line in read_steps(tmp_path)] == [1, 2]

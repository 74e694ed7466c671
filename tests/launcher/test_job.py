"""Runs of real processes: results, refusals and failures; no process is ever left running."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import tiny_task
from refusal import refused
from tiny_task import config
from worker_processes import wait_until

from gallery_lib.cli.main import launch_single_task
from gallery_lib.config import LaunchConfig
from gallery_lib.errors import RunFailed
from gallery_lib.launcher.job import dry_run, launch, start
from gallery_lib.train.loop import train
from gallery_lib.train.results import read_results, read_steps

TWO = LaunchConfig(nproc_per_node=2)


@pytest.mark.slow
def test_a_run_writes_its_directory_and_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = launch(config(run_dir=str(tmp_path / "run"), max_steps=60))
    assert results == read_results(tmp_path / "run")
    assert results.metrics["top1"] > 0.5  # chance is a quarter
    assert results.loss["last"] < results.loss["first"]
    assert len(read_steps(tmp_path / "run")) == 60
    assert json.loads((tmp_path / "run" / "config.json").read_text())["max_steps"] == 60
    shown = capsys.readouterr().out
    assert "$ python3 launch_single_task.py" in shown
    for word in ("epoch 0", "step 60", "loss", "step_time", "samples/s", "peak_memory"):
        assert word in shown
    assert shown.count("parameters  ") == 1 and "emulated" not in shown


@pytest.mark.slow
@pytest.mark.several_cores
def test_two_processes_have_the_loss_curve_of_one_with_the_same_global_batch(
    tmp_path: Path,
) -> None:
    one = launch(config(batch_size=8, run_dir=str(tmp_path / "one")), show_log=False)
    two = launch(config(batch_size=4, run_dir=str(tmp_path / "two")), TWO, show_log=False)
    assert two.world_size == 2
    losses = [[loss for _, loss in run.loss["curve"]] for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and one.metrics == two.metrics
    assert not (tmp_path / "two" / "rendezvous").exists()


@pytest.mark.slow
@pytest.mark.several_cores
def test_two_launchers_one_for_each_host_make_one_run(tmp_path: Path) -> None:
    """Both are on this machine, which has every address of its loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        meeting = {"nnodes": 2, "master_addr": "127.0.0.2", "master_port": free.getsockname()[1]}
    options = config(batch_size=4, run_dir=str(tmp_path / "run"))
    jobs = [start(options, LaunchConfig(node_rank=host, **meeting)) for host in (0, 1)]
    try:
        first, second = (job.result() for job in jobs)
    finally:
        for job in jobs:
            job.stop()
    assert (first.world_size, first.nodes, second) == (2, 2, None)
    one_host = launch(config(batch_size=4, run_dir=str(tmp_path / "one host")), TWO, show_log=False)
    assert first.loss == one_host.loss


@pytest.mark.slow
@pytest.mark.several_cores
def test_a_failing_rank_raises_with_its_line_of_code_and_the_log(tmp_path: Path) -> None:
    own_line = r'tiny_task\.py, line \d+: raise ValueError\("planted failure"\)'
    with pytest.raises(RunFailed, match=own_line) as caught:
        launch(config("FAILING", run_dir=str(tmp_path / "run")), TWO, show_log=False)
    said = str(caught.value)
    assert "ValueError: planted failure" in said and "Last log lines" in said
    assert "Traceback" not in said and "log-rank" in said  # it is in the log that is named
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.slow
def test_a_run_whose_folder_is_gone_is_ended_with_that_reason(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    job = start(config("SLEEPING", max_steps=1000, run_dir=str(run_dir)))
    try:
        wait_until(lambda: job.steps_done() >= 2, 60)
        everyone = psutil.Process(job._process.pid).children(recursive=True)
        run_dir.rename(run_dir.with_name("renamed"))
        run_dir.mkdir()
        with pytest.raises(RunFailed, match="was removed or renamed"):
            wait_until(lambda: not job.running(), 60)
    finally:
        job.stop()
    left = [p for p in everyone if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert everyone and not left


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--amp_level=O2"], "amp_level='O2'"),
        (["--nproc_per_node=99"], "nproc_per_node=99"),
        (["--model", "resnet5"], "`resnet50`"),
        (["--data_dir", "/nowhere"], "/nowhere"),
        (["--nnodes=2"], "master_addr"),
        (["--threads=1024"], "threads=1024"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    words: list[str], part: str, runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch_single_task(words) == 2
    *before, message = capsys.readouterr().err.splitlines()
    assert message.startswith("error: ") and all(line.startswith("imports: ") for line in before)
    assert part in message
    assert not runs_dir.exists()


def test_a_data_set_smaller_than_a_batch_is_refused_before_training(tmp_path: Path) -> None:
    with refused("batch_size", 300, 256):
        train(config(batch_size=300, run_dir=str(tmp_path / "run")))


@pytest.mark.several_cores
def test_a_dry_run_prints_the_command_and_starts_nothing(runs_dir: Path) -> None:
    line = dry_run(config(compiler_opt=True), TWO)
    started = "gallery_lib.launcher.torchrun --nnodes=1 --nproc-per-node=2"
    for part in (started, "OMP_NUM_THREADS=1", "GALLERY_COMPILER_OPT=1", "--compiler-opt"):
        assert part in line
    assert not runs_dir.exists()


@pytest.mark.slow
def test_the_table_of_candidates_is_shown_and_no_printed_time_holds_the_tuning(
    checkout: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "GALLERY_CACHE_DIR": str(tmp_path / "cache")}

    def said(*words: str) -> str:
        command = [sys.executable, *words]
        return subprocess.check_output(command, env=environment, text=True, timeout=300)

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

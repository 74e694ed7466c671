"""Runs of real processes: results, refusals and failures; no process is ever left running."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import tiny_task
from refusal import refused
from tiny_task import config
from worker_processes import wait_until, workers_of

from gallery_lib.cli.main import launch_single_task
from gallery_lib.config import LaunchConfig
from gallery_lib.errors import RunFailed
from gallery_lib.launcher.job import Job, dry_run, launch, start
from gallery_lib.train.results import read_results, read_steps

ALONE, TWO = LaunchConfig(), LaunchConfig(nproc_per_node=2)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@contextlib.contextmanager
def sleeping_run(run_dir: Path, launch: LaunchConfig = ALONE) -> Iterator[tuple[Job, list]]:
    """Yield a run that has done two steps, with its processes; check that none is left."""
    job = start(config("SLEEPING", max_steps=1000, run_dir=str(run_dir)), launch)
    try:
        wait_until(lambda: job.steps_done() >= 2, 60)
        tree = psutil.Process(job._process.pid)
        everyone = [tree, *tree.children(recursive=True)]
        yield job, everyone
    finally:
        job.stop()
    assert alive(everyone) == []


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
    for (_, a), (_, b) in zip(one.loss["curve"], two.loss["curve"], strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    assert one.metrics == two.metrics
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
    with pytest.raises(RunFailed) as caught:
        launch(config("FAILING", run_dir=str(tmp_path / "run")), TWO, show_log=False)
    said = str(caught.value)
    lines = Path(tiny_task.__file__).read_text().splitlines()
    number = lines.index('    raise ValueError("planted failure")') + 1
    assert f'tiny_task.py, line {number}: raise ValueError("planted failure")' in said
    assert "ValueError: planted failure" in said and "Last log lines" in said
    assert "Traceback" not in said and "log-rank" in said  # it is in the log that is named
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.slow
@pytest.mark.several_cores
def test_killing_one_worker_ends_the_run_within_ten_seconds_and_says_so(tmp_path: Path) -> None:
    with sleeping_run(tmp_path / "run", TWO) as (job, everyone):
        victim = workers_of(everyone[0])[1]
        victim.kill()
        wait_until(lambda: not job.running(), 10)
        assert alive(everyone) == []
        with pytest.raises(RunFailed, match=rf"process {victim.pid}\) was killed by SIGKILL"):
            job.result()


@pytest.mark.slow
def test_a_run_whose_folder_is_gone_is_ended_with_that_reason(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with sleeping_run(run_dir) as (job, _):
        run_dir.rename(run_dir.with_name("renamed"))
        run_dir.mkdir()
        with pytest.raises(RunFailed, match="was removed or renamed"):
            wait_until(lambda: not job.running(), 60)


@pytest.mark.slow
@pytest.mark.several_cores
def test_killing_the_launching_process_ends_everything_within_ten_seconds(
    checkout: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    launching = subprocess.Popen(
        [
            *(sys.executable, str(checkout / "launch_single_task.py"), f"--run_dir={run_dir}"),
            *(f"--model={tiny_task.__file__}:SLEEPING", "--workers=0", "--max_steps=1000"),
            *("--log_interval=1", "--threads=1", "--nproc_per_node=2"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: len(read_steps(run_dir)) >= 2, 60)
    everyone = psutil.Process(launching.pid).children(recursive=True)
    assert len(everyone) >= 4  # supervisor, forked, two workers
    launching.kill()
    launching.communicate(timeout=15)
    wait_until(lambda: alive(everyone) == [], 10)
    assert not (run_dir / "results.json").exists()


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
    from gallery_lib.train.loop import train

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

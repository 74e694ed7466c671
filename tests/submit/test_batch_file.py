"""The batch file of a Slurm job: what it asks for, and when it queues itself again.

The file is run by bash with commands of Slurm that note how they were called; how a real Slurm
takes it is in test_slurm_cluster.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusal import check_refused_command, refused

from gallery_lib.cli.main import main
from gallery_lib.config import SlurmConfig, TrainConfig
from gallery_lib.submit import batch_file, program, slurm

TASK = f"{Path(__file__).parents[1] / 'helpers' / 'tiny_task.py'}:TASK"
FOLDER = Path("/runs/one")


def text(
    target: str = TASK, *words: str, training: TrainConfig | None = None, **asked: object
) -> str:
    job = program.of(target, training or TrainConfig(), words)
    return batch_file.text(job, SlurmConfig(**asked), FOLDER)  # type: ignore[arg-type]


def directives(batch: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in batch.splitlines() if "#SBATCH" in line]


def step(batch: str) -> str:
    """Return the command of srun, in one line."""
    return " ".join(batch.partition("\nsrun ")[2].partition(" &\n")[0].replace("\\\n", " ").split())


def test_a_job_asks_for_what_was_given_and_for_nothing_else() -> None:
    batch = text(
        nodes=2,
        gpus_per_node=8,
        cpus_per_node=32,
        mem="64G",
        time="1-12:00:00",
        partition="gpu",
        account="team",
        notice=300,
        sbatch="--exclusive --reservation=m -C 'a b'",
        setup="module load cuda",
    )
    assert directives(batch) == [
        *("--job-name=TASK", f"--comment=gallery:{FOLDER}", "--nodes=2", "--ntasks-per-node=1"),
        *("--gpus-per-node=8", "--cpus-per-task=32", "--mem=64G", "--time=1-12:00:00"),
        *("--partition=gpu", "--account=team", f"--output={FOLDER}/slurm-%j.out"),
        *("--open-mode=append", "--requeue", "--signal=B:USR1@300"),
        *("--exclusive", "--reservation=m", "-C 'a b'"),
    ]
    assert "\nmodule load cuda\n" in batch
    assert "export SRUN_CPUS_PER_TASK=" in batch
    assert len(directives(text())) == 8
    assert subprocess.run(["bash", "-n"], input=batch, text=True).returncode == 0


def test_a_node_has_one_agent_which_meets_the_others_by_slurms_variables() -> None:
    launched = step(text(nodes=2, gpus_per_node=8, training=TrainConfig(lr=0.1, batch_size=4)))
    assert launched.startswith(f"--output={FOLDER}/slurm-%j-node%n.out --open-mode=append ")
    assert '--nnodes="$SLURM_NNODES" --nproc_per_node=8' in launched
    assert '--master_addr="$head_node" --master_port="$port"' in launched
    assert f"--model={TASK} --batch_size=4 --lr=0.1" in launched
    assert f"--run_dir={FOLDER}" in launched


def test_nodes_whose_processes_may_start_again_meet_under_the_jobs_number() -> None:
    launched = step(text(nodes=2, max_restarts=3))
    assert (
        '--max_restarts=3 --rdzv_endpoint="$head_node:$port" --rdzv_id="$SLURM_JOB_ID"' in launched
    )
    assert "--master_addr" not in launched


def test_a_script_gets_torchrun_its_own_words_and_logs_by_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    launched = step(text(str(script), "--name", "a b", nodes=2, nproc_per_node=4))
    assert '--nnodes="$SLURM_NNODES" --nproc-per-node=4' in launched
    assert '--rdzv-endpoint="$head_node:$port" --rdzv-id="$SLURM_JOB_ID"' in launched
    assert launched.endswith(
        f"--max-restarts=0 --log-dir={FOLDER}/ranks --tee=3 {script} --name 'a b'"
    )


STUBS = {
    "scontrol": 'echo "$*" >> "$NOTES"; [ "$1" != show ] || printf "n1\\nn2\\n"',
    "srun": 'trap "echo told >> $NOTES; exit 138" USR1; echo "srun $*" >> "$NOTES"\n'
    'if [ -n "$WAITS" ]; then sleep 60 2> /dev/null & wait; fi; exit "$CODE"',
}


def started(
    tmp_path: Path, code: int, *, waits: bool = False, restarts: int = 0
) -> subprocess.Popen:
    """Start the batch file of a job whose training ends with `code`, or waits for a signal."""
    for name, lines in STUBS.items():
        stub = tmp_path / name
        stub.write_text(f"#!/bin/bash\n{lines}\n")
        stub.chmod(0o755)
    variables = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    variables |= {"NOTES": str(tmp_path / "notes"), "CODE": str(code), "WAITS": "y" * waits}
    variables |= {"SLURM_RESTART_COUNT": str(restarts), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    batch = text(nodes=2, requeues=5)
    return subprocess.Popen(
        ["bash", "-c", batch], env=variables, stderr=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.parametrize(
    ("code", "restarts", "ends_with", "again"),
    [(0, 0, 0, False), (1, 0, 1, False), (75, 0, 0, True), (75, 4, 0, True), (75, 5, 75, False)],
)
def test_a_training_that_wants_to_go_on_later_is_queued_again(
    tmp_path: Path, code: int, restarts: int, ends_with: int, again: bool
) -> None:
    with started(tmp_path, code, restarts=restarts) as process:
        _, said = process.communicate(timeout=30)
    notes = (tmp_path / "notes").read_text()
    assert (process.returncode, "requeue 17\n" in notes) == (ends_with, again)
    assert ("it was 5 times" in said.decode()) == (restarts == 5)
    assert "show hostnames n[1-2]" in notes
    assert "--master_addr=n1 --master_port=20017 " in notes


def test_notice_of_the_time_limit_is_passed_on_and_the_job_queued_again(tmp_path: Path) -> None:
    with started(tmp_path, 0, waits=True) as process:
        deadline = time.monotonic() + 30
        while "srun " not in (
            (tmp_path / "notes").read_text() if (tmp_path / "notes").exists() else ""
        ):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=30)
        os.killpg(process.pid, signal.SIGKILL)  # the stub's sleep
    assert (tmp_path / "notes").read_text().splitlines()[-2:] == ["told", "requeue 17"]
    assert process.returncode == 0


def test_without_requeues_a_job_ends_with_its_own_exit_code() -> None:
    batch = text(requeues=0)
    assert "--no-requeue" in directives(batch)
    assert "scontrol requeue" not in batch


@pytest.mark.parametrize(
    ("asked", "parameter", "values"),
    [
        ({"time": "soon"}, "time", ["'soon'", "12:00:00"]),
        ({"mem": "much"}, "mem", ["'much'", "64G"]),
        ({"partition": "gpu --exclusive"}, "partition", ["gpu --exclusive"]),
        ({"job_name": "$(id)"}, "job_name", ["$(id)"]),
        ({"sbatch": "exclusive"}, "sbatch", ["'exclusive'"]),
        ({"sbatch": "--x='"}, "sbatch", ["--x="]),
        ({"setup": "a\nb"}, "setup", ["one line"]),
        ({"nproc_per_node": 4, "gpus_per_node": 2}, "nproc_per_node", ["=4", "2 GPU"]),
    ],
)
def test_what_has_no_place_in_a_batch_file_is_refused(
    asked: dict[str, object], parameter: str, values: list[str]
) -> None:
    with refused(parameter, *values):
        text(**asked)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["tts_anglar"], ["`tts_anglar`", "Did you mean `tts_angular`"]),
        (["missing.py"], ["missing.py", "does not exist"]),
        (["launch_single_task.py", "--lr=1"], ["--lr=1", "launch_single_task.py -- --lr=1"]),
        ([TASK, "--", "--lr=1"], ["'--lr=1'", "task"]),
        ([TASK, "--nnodes=2"], ["--nnodes", "--nodes"]),
        ([TASK, "--run_dir=a b"], ["a b"]),
        ([TASK, "--lr=x"], ["lr='x'"]),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], values: list[str]
) -> None:
    code = main(["submit", "slurm", *words[:1], "--dry-run", *words[1:]])
    said = capsys.readouterr()
    check_refused_command(code, said.err, *values)
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_without_slurm_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for words in (["submit", "slurm", TASK, f"--run_dir={tmp_path / 'run'}"], ["jobs"]):
        code = main(words)
        check_refused_command(code, capsys.readouterr().err, "login node", "--dry-run")
    assert not (tmp_path / "run").exists()


def test_jobs_are_those_with_our_comment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    squeue = tmp_path / "squeue"
    lines = "7|RUNNING|tiny|1:02|5:00|2|n[1-2]|gallery:/runs/a|b\n8|PENDING|x|0:00|1|1|(None)|\n"
    squeue.write_text(f"#!{sys.executable}\nprint({lines!r}, end='')\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (job,) = slurm.jobs()
    assert (job.job, job.state, job.where, job.run_dir) == ("7", "RUNNING", "n[1-2]", "/runs/a|b")

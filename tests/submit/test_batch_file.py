"""docs/examples/slurm.sh: which agent it starts, and when it queues its job again.

bash runs the file with commands of Slurm that note how they were called; how a real Slurm takes it
is in test_slurm_cluster.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from worker_processes import wait_until

from gallery_lib.comm.rendezvous import FIRST_PORT, PORTS

STUBS = {
    "scontrol": 'echo "$*" >> "$NOTES"; [ "$1" != show ] || printf "n1\\nn2\\n"',
    "srun": 'trap "echo told >> $NOTES; exit 138" USR1; echo "srun $*" >> "$NOTES"\n'
    'if [ -n "$WAITS" ]; then sleep 60 2> /dev/null & wait; fi; exit "$CODE"',
}


def started(
    checkout: Path, folder: Path, *words: str, code: int = 0, waits: bool = False, **variables: str
) -> subprocess.Popen:
    """Start the batch file of a job whose training ends with `code`, or waits for a signal."""
    for name, lines in STUBS.items():
        stub = folder / name
        stub.write_text(f"#!/bin/bash\n{lines}\n")
        stub.chmod(0o755)
    slurm = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    notes = {"NOTES": str(folder / "notes"), "CODE": str(code), "WAITS": "y" * waits}
    return subprocess.Popen(
        ["bash", checkout / "docs/examples/slurm.sh", *(words or ["resnet50"])],
        env={**slurm, **notes, "PATH": f"{folder}:{os.environ['PATH']}", **variables},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def step(checkout: Path, folder: Path, *words: str, **variables: str) -> str:
    """Return the words of srun for a job with these words, the last in this folder."""
    with started(checkout, folder, *words, **variables) as process:
        process.communicate(timeout=30)
    notes = (folder / "notes").read_text().splitlines()
    return [line for line in notes if line.startswith("srun ")][-1]


def test_a_task_has_the_launcher_for_an_agent_and_a_script_has_torchrun(
    checkout: Path, tmp_path: Path
) -> None:
    words = step(checkout, tmp_path, "resnet50", "--lr=0.1", SLURM_GPUS_ON_NODE="8")
    assert f"{tmp_path}/.venv/bin/python launch_single_task.py --nproc_per_node=8" in words
    assert words.endswith(
        f"--model=resnet50 --run_dir={tmp_path}/runs/slurm-17 "
        "--resume=auto --checkpoint_every=10min --lr=0.1"
    )
    named = step(checkout, tmp_path, MASTER_ADDR="10.0.0.1", RUN_DIR="/runs/one")
    assert "--master_addr=10.0.0.1" in named and "--run_dir=/runs/one" in named
    words = step(checkout, tmp_path, "train.py", "--name", "a b", PROCESSES="4")
    meeting = f"--rdzv_backend=c10d --rdzv_endpoint=n1:{FIRST_PORT + 17 % PORTS} --rdzv_id=17"
    assert f"gallery_lib.launcher.torchrun --nnodes=2 --nproc-per-node=4 {meeting} " in words
    assert words.endswith("/ranks --tee=3 train.py --name a b")


@pytest.mark.parametrize(
    ("code", "restarts", "ends_with", "again"),
    [(0, 0, 0, False), (1, 0, 1, False), (75, 0, 0, True), (75, 4, 0, True), (75, 5, 75, False)],
)
def test_a_training_that_wants_to_go_on_later_is_queued_again(
    checkout: Path, tmp_path: Path, code: int, restarts: int, ends_with: int, again: bool
) -> None:
    times = {"SLURM_RESTART_COUNT": str(restarts), "REQUEUES": "5"}
    with started(checkout, tmp_path, code=code, **times) as process:
        _, said = process.communicate(timeout=30)
    notes = (tmp_path / "notes").read_text()
    assert (process.returncode, "requeue 17\n" in notes) == (ends_with, again)
    assert ("it was 5 times" in said.decode()) == (restarts == 5)


def test_notice_of_the_time_limit_is_passed_on_and_the_job_queued_again(
    checkout: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    with started(checkout, tmp_path, waits=True) as process:
        wait_until(lambda: notes.exists() and "srun " in notes.read_text(), 30)
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=30)
        os.killpg(process.pid, signal.SIGKILL)  # the stub's sleep
    assert notes.read_text().splitlines()[-2:] == ["told", "requeue 17"]
    assert process.returncode == 0

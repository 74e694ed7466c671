"""Jobs on a real Slurm: a controller and two nodes on the hosts of a lab.

A job is preempted, told that its time is up, and loses a node. A script of one's own trains too.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.conftest import processes_of, why_no_lab
from slurm_cluster import SlurmCluster, slurm_cluster, why_no_slurm

from gallery_lib.system.processes import search_path
from gallery_lib.train.results import read_results, read_steps

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.thorough]

CHECKOUT = Path(__file__).parents[2]
TASK = f"{CHECKOUT}/tests/helpers/tiny_task.py:SLEEPING"
STEPS = 16
TRAINING = [f"--max_steps={STEPS}", "--log_interval=1", "--no-evaluate", "--workers=0"]
CHECKPOINTS = "--checkpoint_every=2"
WITH_CHECKPOINTS = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from gallery_lib import Config, accelerate
from gallery_lib.checkpoint import Checkpoint

torch.manual_seed(0)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
samples = DataLoader(TensorDataset(torch.arange(16.0).view(16, 1)), batch_size=1)
model, loader, optimizer = accelerate(model, samples, optimizer, Config.plain())
checkpoint = Checkpoint(
    sys.argv[1], model=model, optimizer=optimizer, loader=loader, every=1000
)
for epoch in range(checkpoint.epoch, 2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        time.sleep(0.4)
        if dist.get_rank() == 0:
            print("step", checkpoint.steps + 1, flush=True)
        checkpoint.step()
checkpoint.close()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Yield a cluster that is up; check afterwards that no process of it is left."""
    if reason := why_no_lab() or why_no_slurm():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    cache = folder / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", search_path())
        patch.setenv("GALLERY_CACHE_DIR", str(cache))
        patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
        with slurm_cluster(folder / "cluster") as made:
            yield made
        assert processes_of(cache) == []


def submit(cluster: SlurmCluster, run_dir: Path, options: list[str], *words: str) -> str:
    """Queue a job with options of sbatch, as from the checkout; return its number."""
    done = cluster.run(
        *("env", f"--chdir={CHECKOUT}", f"RUN_DIR={run_dir}", f"PYTHON={sys.executable}"),
        *("sbatch", "--parsable", f"--output={run_dir.parent}/slurm-%j.out", *options),
        *(f"{CHECKOUT}/docs/examples/slurm.sh", *words),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def losses(run_dir: Path) -> dict[int, float]:
    """Return the loss of each step that a run has logged; the last one counts."""
    return {step["step"]: step["loss"] for step in read_steps(run_dir)}


def test_an_interrupted_job_ends_like_one_that_was_left_alone(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """It is preempted by an urgent job, told that its time is up, and loses a node."""
    run_dir = tmp_path / "interrupted"
    options = ["--nodes=2", "--gpus-per-node=1", "--time=20"]
    job = submit(cluster, run_dir, options, TASK, *TRAINING, CHECKPOINTS)

    wait_until_it_goes_on(cluster, job, run_dir, after=2)
    words = ("--parsable", "-p", "urgent", "-N2", "--exclusive", "--output=/dev/null")
    urgent = cluster.run("sbatch", *words, "--wrap", "true").stdout
    cluster.wait_for(urgent.strip(), "COMPLETED")
    assert cluster.job(job)["Restarts"] == "1"

    last = wait_until_it_goes_on(cluster, job, run_dir, after=max(losses(run_dir)))
    # This is what --signal=B:USR1@120 does two minutes before the time limit.
    assert cluster.run("scancel", "--batch", "--signal=USR1", job).returncode == 0
    cluster.until(lambda: cluster.job(job)["Restarts"] == "2", "the job is not queued again")

    wait_until_it_goes_on(cluster, job, run_dir, after=max(last, *losses(run_dir)))
    cluster.kill_node(2)
    cluster.until(lambda: cluster.job(job)["Restarts"] == "3", "the job is not queued again", 60)
    cluster.start_node(2)

    ended = cluster.wait_for(job, "COMPLETED", "FAILED", "NODE_FAIL", seconds=150)
    assert ended["ExitCode"] == "0:0"
    assert sorted(losses(run_dir)) == list(range(1, STEPS + 1))
    agent = (run_dir / f"slurm-{job}-node0.out").read_text()
    assert agent.count(": ended after step") == 2, agent  # told by SIGTERM, by SIGUSR1
    # A start that ended before its model was built is not among them.
    interruptions = json.loads((run_dir / "results.json").read_text())["interruptions"]
    assert interruptions[0]["lost_steps"] == 0, interruptions
    assert 2 <= len(interruptions) <= 3 and interruptions[-1]["lost_steps"] <= 2, interruptions
    assert "Exited with exit code 75" in (tmp_path / f"slurm-{job}.out").read_text()

    alone = tmp_path / "alone"
    words = (f"{CHECKOUT}/launch_single_task.py", f"--model={TASK}", f"--run_dir={alone}")
    srun = ("srun", "-N2", "--ntasks-per-node=1", sys.executable, *words, *TRAINING)
    done = cluster.run(*srun, timeout=150)
    assert done.returncode == 0, done.stderr
    assert losses(run_dir) == losses(alone)
    results = read_results(alone)
    assert (results.world_size, results.steps) == (2, STEPS)


def wait_until_it_goes_on(cluster: SlurmCluster, job: str, run_dir: Path, after: int) -> int:
    """Wait until a job runs again and has done a step after that one; return its last step."""
    cluster.wait_for(job, "RUNNING", seconds=150)
    cluster.until(
        lambda: max(losses(run_dir), default=0) > after, "the job does not go on", seconds=120
    )
    return max(losses(run_dir))


def test_a_script_with_checkpoints_is_told_of_the_end_and_goes_on(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    script, run_dir = tmp_path / "train.py", tmp_path / "job"
    script.write_text(WITH_CHECKPOINTS)
    job = submit(cluster, run_dir, ["--nodes=2"], str(script), str(tmp_path / "checkpoints"))

    def said() -> str:
        return "".join(file.read_text() for file in sorted(run_dir.glob("slurm-*node*.out")))

    cluster.until(lambda: "step 3\n" in said(), "the script does not train", seconds=120)
    assert cluster.run("scancel", "--batch", "--signal=USR1", job).returncode == 0
    ended = cluster.wait_for(job, "COMPLETED", "FAILED", seconds=150)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), said()
    steps = [int(step) for step in re.findall(r"\]:step (\d+)$", said(), re.MULTILINE)]
    assert steps == list(range(1, 17)), said()  # none twice, so it went on where it was
    # Each node numbers its own ranks, in a folder for each start.
    logs = list((run_dir / "ranks").rglob("stdout.log"))
    assert {log.parent.name for log in logs} == {"0"} and len(logs) == 4

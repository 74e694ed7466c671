"""A process finds its rank in torch.distributed, then torchrun's variables, then a scheduler's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from refusal import refused

from gallery_lib.comm import process_group
from gallery_lib.comm.topology import Topology

VARIABLES = {name for names in process_group.LAUNCHERS.values() for name in names} | {
    "MASTER_ADDR",
    "MASTER_PORT",
}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
SEES_ITS_SHARE = """
import sys, torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from gallery_lib import Config, accelerate

def main(rank=None, world=None, address=None):
    if address:
        late, _ = accelerate(nn.Linear(1, 1), Config.plain())
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
        try: late(torch.ones(1, 1))
        except ValueError as error: print(error)
    torch.manual_seed(0)
    model, loader = accelerate(nn.Linear(1, 1), \
DataLoader(TensorDataset(torch.arange(8.0).view(8, 1)), batch_size=4), Config.plain())
    seen = []
    for (x,) in loader:
        seen += x.flatten().tolist()
        ((model(x) - dist.get_rank()) ** 2).mean().backward()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (seen, model.weight.grad.item()))
    if dist.get_rank() == 0:
        assert sorted(sum((seen for seen, _ in everyone), [])) == list(range(8)), everyone
        assert everyone[0][1] == everyone[1][1], everyone
        print("right")
    dist.destroy_process_group()

if __name__ == "__main__":
    if sys.argv[1:]: torch.multiprocessing.spawn(main, (2, sys.argv[1]), nprocs=2)
    else: main()
"""


def without_launcher(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (1, 2)),
        ({**SRUN, "RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),  # torchrun on each node of a job
        (SRUN, (1, 2)),
        (OPEN_MPI, (1, 2)),
        ({"PMI_RANK": "0", "PMI_SIZE": "3"}, (0, 3)),
        # A batch script by itself, not a step of srun.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1)),
    ],
)
def test_the_launchers_variables_tell(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[int, int]
) -> None:
    without_launcher(monkeypatch, variables)
    assert (process_group.rank(), process_group.world_size()) == expected


@pytest.mark.parametrize(
    ("variables", "parameter", "values"),
    [
        ({"WORLD_SIZE": "2"}, "RANK", ["WORLD_SIZE=2", "RANK is not set"]),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE", ["WORLD_SIZE='two'"]),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK", ["RANK=2", "WORLD_SIZE=2"]),
        (SRUN, "MASTER_ADDR", ["srun started 2 processes", "MASTER_PORT"]),
        (OPEN_MPI, "MASTER_ADDR", ["Open MPI started 2 processes", "MASTER_PORT"]),
    ],
)
def test_variables_that_do_not_make_a_run_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    parameter: str,
    values: list[str],
) -> None:
    without_launcher(monkeypatch, variables)
    with refused(parameter, *values) as raised:
        process_group.ensure_initialized()
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mp.spawn", "srun", "Open MPI"])
def test_processes_that_were_not_started_by_torchrun_train_together(
    tmp_path: Path, checkout: Path, launcher: str
) -> None:
    """A process group that is made after accelerate() is refused at the first call."""
    script = tmp_path / "script.py"
    script.write_text(SEES_ITS_SHARE)
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    if launcher == "mp.spawn":
        command.append(f"file://{tmp_path}/store")
        places = [environment]
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        theirs = SRUN if launcher == "srun" else OPEN_MPI
        own = {name: "0" for name in theirs if name.endswith(("RANK", "PROCID", "LOCALID"))}
        places = [{**environment, **theirs, **meet, **rank} for rank in (own, {})]
    running = [
        subprocess.Popen(
            command, env=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for place in places
    ]
    said = "".join(process.communicate(timeout=300)[0] for process in running)
    assert [process.returncode for process in running] == [0] * len(running), said
    assert "right" in said
    late = "the process group of 2 processes was made after accelerate()"
    assert said.count(late) == (2 if launcher == "mp.spawn" else 0)


def test_local_ranks_and_peers() -> None:
    hosts = Topology(((0, 2), (1, 3), (4, 5)))
    assert hosts.local(3) == (1, 3)
    assert hosts.uniform and str(hosts) == "3 hosts × 2 processes"
    hosts = Topology(((0,), (1, 2)))
    assert not hosts.uniform and str(hosts) == "hosts of 1, 2 processes"

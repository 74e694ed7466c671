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

VARIABLES = {name for launcher in process_group.LAUNCHERS for name in launcher[1:]} | {
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
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
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
"""
SPAWNED = """
if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (2, sys.argv[1]), nprocs=2)
"""


def without_launcher(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


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
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
            (0, 1),
        ),
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
    script = tmp_path / "script.py"
    script.write_text(SEES_ITS_SHARE + (SPAWNED if launcher == "mp.spawn" else "main()"))
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    if launcher == "mp.spawn":
        processes = [[sys.executable, str(script), f"file://{tmp_path}/store"]]
        places = [{}]
    else:
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        theirs = SRUN if launcher == "srun" else OPEN_MPI
        ranks = {
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_LOCAL_RANK",
        }
        places = [
            {**{n: str(rank) if n in ranks else v for n, v in theirs.items()}, **meet}
            for rank in range(2)
        ]
        processes = [[sys.executable, str(script)]] * 2
    running = [
        subprocess.Popen(
            command,
            env={**environment, **place},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, place in zip(processes, places, strict=True)
    ]
    said = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), said
    assert "right" in "".join(said)


@pytest.mark.slow
def test_a_group_that_is_made_after_accelerate_is_refused_at_the_first_call(
    tmp_path: Path, checkout: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "from gallery_lib import Config, accelerate\n"
        "def main(rank, address):\n"
        "    model, _ = accelerate(nn.Linear(1, 1), Config.plain())\n"
        "    dist.init_process_group('gloo', init_method=address, rank=rank, world_size=2)\n"
        "    try: model(torch.ones(1, 1))\n"
        "    except Exception as error: sys.stdout.write(f'{type(error).__name__} {error}\\n'); "
        "sys.stdout.flush()\n"
        "    dist.destroy_process_group()\n"
        "if __name__ == '__main__': torch.multiprocessing.spawn(main, (sys.argv[1],), nprocs=2)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, str(script), f"file://{tmp_path}/store"],
        env={**environment, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(
        line.startswith("InputError the process group of 2 processes was made after accelerate()")
        for line in lines
    )

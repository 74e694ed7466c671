"""What a process reads from its environment: its rank, and the options of `gallery_lib.comm.auto`.

The rank is that of torch.distributed, else of torchrun's variables, else of a scheduler's.
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import pytest
import tiny_task
from against_torch.case import Case
from against_torch.launches import Server
from against_torch.run import SAME, run
from ranks import on_ranks
from refusal import refused
from torch.nn.parallel import DistributedDataParallel as DDP

from gallery_lib.comm import process_group
from gallery_lib.comm.process_group import Topology
from gallery_lib.train.loop import train

VARIABLES = {"MASTER_ADDR", "MASTER_PORT"}.union(*process_group.LAUNCHERS.values())
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


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
    monkeypatch: pytest.MonkeyPatch, variables: dict, parameter: str, values: list
) -> None:
    without_launcher(monkeypatch, variables)
    with refused(parameter, *values) as raised:
        process_group.ensure_initialized()
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["spawn", "srun", "open_mpi", "two_group_after"])
def test_processes_that_were_not_started_by_torchrun_train_together(launch: str) -> None:
    """A process group that is made after accelerate() is refused at the first call."""
    verdict = run(Case(launch=launch), Server())
    if launch == "two_group_after":
        assert "group of 2 processes was made after accelerate()" in verdict.lines[0]
    else:
        assert verdict.outcome == SAME, verdict.lines


@pytest.mark.slow
@on_ranks("two")
def test_a_process_trains_more_than_once(tmp_path: Path) -> None:
    """The ranks meet in a file, as on one host; those of test_every_task at an address.

    Rank 1 is late: rank 0 joins the next group while rank 1 is in the one before.
    """
    late, curves = process_group.rank() == 1, []
    process_group.leave()
    for number in range(2):
        time.sleep(0.5 if late else 0.0)
        config = tiny_task.config(max_steps=3, run_dir=str(tmp_path / str(number)))
        curves.append(train(config).loss["curve"])
    assert curves[0] == curves[1] and len(curves[0]) == 3


def test_hosts_and_their_processes_in_words() -> None:
    assert str(Topology(((0, 2), (1, 3), (4, 5)))) == "3 hosts × 2 processes"
    assert str(Topology(((0,), (1, 2)))) == "hosts of 1, 2 processes"


def test_options_come_from_the_environment_and_the_import_can_be_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auto = importlib.import_module("gallery_lib.comm.auto")
    auto.disable()
    plain = DDP.__init__
    for name, value in {"TUNE": "0", "STREAMS": "2", "BUCKET_MB": "2.5", "WIRE": "bf16"}.items():
        monkeypatch.setenv(f"GALLERY_COMM_{name}", value)
    read = importlib.reload(auto).options
    assert (read.tune, read.streams, read.bucket_mb, read.wire) == (False, 2, 2.5, "bf16")
    for change, same in ((auto.disable, True), (auto.enable, False), (auto.disable, True)):
        change()
        assert (DDP.__init__ is plain) is same
    for name, value, message in (
        ("STREAMS", "two", "streams='two' must be a whole number"),
        ("TUNE", "maybe", "tune='maybe' must be true or false"),
        ("STREAM", "2", "unknown parameter `stream`"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"GALLERY_COMM_{name}", value)
            with pytest.raises(ValueError, match=f"variables GALLERY_COMM_…: {message}"):
                importlib.reload(auto)

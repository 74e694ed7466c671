"""What a process reads from its environment: its place in the run, and the options of `comm.auto`.

The rank is that of torch.distributed, else of torchrun's variables, else of a scheduler's.
Processes meet where nobody outside the machine can reach them, or where srun or Kubeflow says.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_task
import torch
from against_torch.case import Case
from against_torch.launches import Server
from against_torch.run import SAME, run
from ranks import on_ranks
from refusal import refused
from torch.nn.parallel import DistributedDataParallel as DDP

from gallery_lib.comm import process_group, rendezvous
from gallery_lib.comm.process_group import Topology
from gallery_lib.config import LaunchConfig
from gallery_lib.train.loop import train

VARIABLES = {"MASTER_ADDR", "MASTER_PORT"}.union(*process_group.LAUNCHERS.values())
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "PET_")) or name in VARIABLES:
            monkeypatch.delenv(name)


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_processes_of_a_scheduler_share_cores_unless_it_has_bound_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert process_group.local_processes() == 1

    def beside(others: list[tuple[str, set[int]]]) -> int:
        monkeypatch.setattr(process_group, "all_ranks", lambda own: [*others, own])
        return process_group.local_processes()

    here, cores = socket.gethostname(), os.sched_getaffinity(0)
    assert beside([(here, cores), (here, cores), ("another", cores)]) == 3
    assert beside([(here, {max(cores) + 1}), (here, {max(cores) + 2})]) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert beside([]) == 8


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
    set_all(monkeypatch, variables)
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
    set_all(monkeypatch, variables)
    with refused(parameter, *values) as raised:
        process_group.ensure_initialized()
    assert "\n" not in str(raised.value)


def chosen_device(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, visible: int
) -> tuple[torch.device, list[torch.device]]:
    """Return the device of a process that sees so many GPUs, and what it made its current one."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    set_all(monkeypatch, {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": local_rank})
    return process_group.device(), current


@pytest.mark.parametrize(("local_rank", "visible", "index"), [("2", 4, 2), ("3", 1, 0)])
def test_a_process_takes_the_gpu_of_its_local_rank_or_the_only_one_that_it_sees(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, visible: int, index: int
) -> None:
    own = torch.device("cuda", index)
    assert chosen_device(monkeypatch, local_rank, visible) == (own, [own])


def test_more_processes_than_visible_gpus_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with refused("LOCAL_RANK", "LOCAL_RANK=2", "2 GPUs", "at most 2 processes") as raised:
        chosen_device(monkeypatch, "2", 2)
    assert "\n" not in str(raised.value) and raised.value.exit_code == 2


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


# --------------------------------------------------------------------------------------------------
# Where processes meet


STORES = """
import sys
from gallery_lib.comm import rendezvous
rendezvous.listen_where_told()
import psutil, torch.distributed as dist
from torch.distributed.elastic.rendezvous import dynamic_rendezvous, static_tcp_rendezvous
stores = [
    dist.TCPStore("127.0.0.1", 0, is_master=True, multi_tenant=True),
    static_tcp_rendezvous.TCPStore("127.0.0.1", int(sys.argv[1]), 1, True, \
dist.default_pg_timeout, multi_tenant=True),
    dynamic_rendezvous.dist.TCPStore(host_name="localhost", port=0, is_master=True),
]
for store in stores:
    store.set("key", "value")
    assert dist.TCPStore("127.0.0.1", store.port, is_master=False).get("key") == b"value"
listening = {each.laddr.ip for each in psutil.Process().net_connections("inet") \
if each.status == "LISTEN"}
print(*sorted(listening))
"""


@pytest.mark.slow
def test_stores_listen_on_the_address_that_they_are_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", STORES, str(port)], capture_output=True, text=True, check=False
    )
    assert set(done.stdout.split()) <= {"127.0.0.1", "::1"} and done.stdout.split(), done.stderr


def test_an_interface_that_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert rendezvous.loopback_interface() == {"NCCL_SOCKET_IFNAME": "lo"}


def test_an_address_of_another_host_cannot_be_listened_on() -> None:
    with pytest.raises(OSError, match=r"[Aa]ssign"):
        rendezvous.listening_on("192.0.2.1", 0)


STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "localhost,n[1-2]",
    "SLURM_PROCID": "1",
}
FIVE_TASKS = STEP | {"SLURM_STEP_NUM_TASKS": "5"}
POD = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "localhost",
    "PET_MASTER_PORT": "29500",
}
IN_STEP = {
    "nnodes": 3,
    "node_rank": 1,
    "master_addr": "localhost",
    "master_port": rendezvous.FIRST_PORT + 17 + 2 * 97,
}
IN_POD = {
    "nproc_per_node": 4,
    "nnodes": 2,
    "node_rank": 1,
    "master_addr": "localhost",
    "master_port": 29500,
}


def test_the_first_host_of_a_list() -> None:
    for nodelist, first in {
        "n1": "n1",
        "n3,n1": "n3",
        "node[03-05,09],gpu1": "node03",
        "rack[2-3]-n[07,09]": "rack2-n07",
        "n[1-2].cluster,login": "n1.cluster",
    }.items():
        assert rendezvous.first_host(nodelist) == first


@pytest.mark.parametrize(
    ("variables", "given", "expected"),
    [
        # The only task of a node starts the processes of its node.
        (STEP, {"nproc_per_node": 2}, {**IN_STEP, "nproc_per_node": 2}),
        (STEP, {"master_port": 5}, {**IN_STEP, "master_port": 5}),  # what was given stays
        (POD, {}, IN_POD),
        # Outside a step of several tasks nothing changes.
        ({}, {}, {}),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, {}, {}),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}, {}, {}),  # a batch script
        ({**STEP, "RANK": "0"}, {}, {}),  # torchrun's own process
        ({**POD, "PET_NNODES": "1"}, {}, {}),
    ],
)
def test_a_step_of_srun_or_a_pod_tells_where_a_host_is(
    monkeypatch: pytest.MonkeyPatch, variables: dict, given: dict, expected: dict
) -> None:
    set_all(monkeypatch, variables)
    assert rendezvous.placed(LaunchConfig(**given)) == LaunchConfig(**expected)


@pytest.mark.parametrize(
    ("variables", "given", "parameter", "values"),
    [
        (STEP, {"nnodes": 2}, "nnodes", ["nnodes=2", "3 hosts"]),
        (FIVE_TASKS, {}, "nproc_per_node", ["5 tasks on 3 nodes", "--ntasks-per-node=1"]),
        (STEP | {"SLURM_PROCID": "x"}, {}, "SLURM_PROCID", ["'x'"]),
        (STEP | {"SLURM_STEP_NODELIST": "no.invalid"}, {}, "master_addr", ["no.invalid"]),
        # Debian's /etc/hosts has the host's own name as an address of the loopback interface.
        (STEP | {"SLURM_PROCID": "0"}, {}, "master_addr", ["localhost is 127.0.0.1"]),
        (POD, {"nnodes": 3}, "nnodes", ["nnodes=3", "2 hosts"]),
    ],
)
def test_what_contradicts_the_scheduler_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict, given: dict, parameter: str, values: list
) -> None:
    set_all(monkeypatch, variables)
    with refused(parameter, *values):
        rendezvous.placed(LaunchConfig(**given))

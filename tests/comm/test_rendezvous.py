"""Processes meet where nobody outside the machine can reach them, or where a scheduler says.

A process finds its place in a job by the variables of srun, or of Kubeflow Trainer.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from refusal import refused

from gallery_lib.comm import rendezvous
from gallery_lib.config import LaunchConfig

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


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "PET_")) or name == "RANK":
            monkeypatch.delenv(name)


def placed(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], **given: object
) -> LaunchConfig:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return rendezvous.placed(LaunchConfig(**given))  # type: ignore[arg-type]


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
    assert placed(monkeypatch, variables, **given) == LaunchConfig(**expected)


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
    with refused(parameter, *values):
        placed(monkeypatch, variables, **given)

"""A process finds its place in a job by the variables of srun, or of Kubeflow Trainer."""

from __future__ import annotations

import os

import pytest
from refusal import refused

from gallery_lib.comm import rendezvous
from gallery_lib.config import LaunchConfig

STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "localhost,n[1-2]",
    "SLURM_PROCID": "1",
}
POD = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "localhost",
    "PET_MASTER_PORT": "29500",
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


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("n1", "n1"),
        ("n3,n1", "n3"),
        ("node[03-05,09],gpu1", "node03"),
        ("rack[2-3]-n[07,09]", "rack2-n07"),
        ("n[1-2].cluster,login", "n1.cluster"),
    ],
)
def test_the_first_host_of_a_list(nodelist: str, first: str) -> None:
    assert rendezvous.first_host(nodelist) == first


def test_the_only_task_of_a_node_starts_the_processes_of_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = placed(monkeypatch, STEP, nproc_per_node=2)
    assert (launch.nnodes, launch.node_rank, launch.nproc_per_node) == (3, 1, 2)
    assert (launch.master_addr, launch.master_port) == ("localhost", 20_000 + 17 + 2 * 97)
    assert placed(monkeypatch, STEP, master_port=5).master_port == 5  # what was given stays


def test_a_pod_of_a_train_job_is_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert placed(monkeypatch, POD) == LaunchConfig(
        nproc_per_node=4, nnodes=2, node_rank=1, master_addr="localhost", master_port=29500
    )


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {**STEP, "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0"},  # a batch script itself
        {**STEP, "RANK": "0"},  # torchrun's own process
        {**POD, "PET_NNODES": "1"},
    ],
)
def test_outside_a_step_of_several_tasks_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    assert placed(monkeypatch, variables) == LaunchConfig()


@pytest.mark.parametrize(
    ("variables", "given", "parameter", "values"),
    [
        (STEP, {"nnodes": 2}, "nnodes", ["nnodes=2", "3 hosts"]),
        (
            {**STEP, "SLURM_STEP_NUM_TASKS": "5"},
            {},
            "nproc_per_node",
            ["5 tasks on 3 nodes", "--ntasks-per-node=1"],
        ),
        ({**STEP, "SLURM_PROCID": "x"}, {}, "SLURM_PROCID", ["'x'"]),
        (
            {**STEP, "SLURM_STEP_NODELIST": "nowhere.invalid"},
            {},
            "master_addr",
            ["nowhere.invalid"],
        ),
        # Debian's /etc/hosts has the host's own name as an address of the loopback interface.
        ({**STEP, "SLURM_PROCID": "0"}, {}, "master_addr", ["localhost is 127.0.0.1"]),
        (POD, {"nnodes": 3}, "nnodes", ["nnodes=3", "2 hosts"]),
    ],
)
def test_what_contradicts_the_scheduler_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    given: dict[str, object],
    parameter: str,
    values: list[str],
) -> None:
    with refused(parameter, *values):
        placed(monkeypatch, variables, **given)

"""The example for Kubernetes has only fields that exist, and its command trains on two hosts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.conftest import why_no_lab
from kubeflow_trainer_api import models

from gallery_lib.cluster import Lab
from gallery_lib.cluster.network import INTERFACE

TASK = f"{Path(__file__).parents[1] / 'helpers' / 'tiny_task.py'}:TASK"
WORKSPACE = "/workspace"


@pytest.fixture
def resources(checkout: Path) -> list[dict[str, Any]]:
    """Return the claim and the TrainJob."""
    return list(yaml.safe_load_all((checkout / "docs/examples/train_job.yaml").read_text()))


def test_its_resources_have_no_field_that_kubernetes_does_not_know(
    resources: list[dict[str, Any]],
) -> None:
    claim, job = resources
    # A field that the model does not know is not in what it writes.
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    metadata = models.IoK8sApimachineryPkgApisMetaV1ObjectMeta
    assert metadata.from_dict(claim["metadata"]).to_dict() == claim["metadata"]
    spec = models.IoK8sApiCoreV1PersistentVolumeClaimSpec
    assert spec.from_dict(claim["spec"]).to_dict() == claim["spec"]


def test_its_workers_share_the_claim_and_ask_for_cores_and_memory(
    resources: list[dict[str, Any]],
) -> None:
    claim, job = resources
    trainer = job["spec"]["trainer"]
    assert trainer["numNodes"] == 2
    assert {"cpu", "memory"} <= set(trainer["resourcesPerNode"]["requests"])
    # Kubeflow Trainer refuses a job that sets these itself.
    assert not [one for one in trainer["env"] if one["name"].startswith("PET_")]
    (patch,) = job["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]["spec"]
    assert node["name"] == pod["containers"][0]["name"] == "node"
    names = [one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"][:1]]
    assert names == [claim["metadata"]["name"]]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_image_has_what_the_command_names_and_is_not_root(
    resources: list[dict[str, Any]], checkout: Path
) -> None:
    lines = (checkout / "docs/examples/Dockerfile").read_text().splitlines()
    words = [line.split() for line in lines]
    copied = [
        word
        for line in words
        if line[:1] == ["COPY"] and "--from=build" not in line
        for word in line[1:-1]
    ]
    assert {"requirements.lock", "gallery_lib", "launch_single_task.py"} <= set(copied)
    assert all((checkout / name).exists() for name in copied)
    sent = (checkout / "docs/examples/Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in sent if line.startswith("!")} == set(copied)
    patch = json.dumps(resources[1]["spec"]["runtimePatches"])
    (user,) = [line[1] for line in words if line[:1] == ["USER"]]
    assert f'"runAsUser": {user}' in patch
    folder, _, name = resources[1]["spec"]["trainer"]["command"][1].rpartition("/")
    assert ["COPY", name, f"{folder}/"] in words
    assert f"WORKDIR {WORKSPACE}" in lines


@pytest.mark.cluster
@pytest.mark.slow
def test_its_command_trains_on_two_hosts(
    resources: list[dict[str, Any]], tmp_path: Path, checkout: Path
) -> None:
    """Kubeflow Trainer sets these variables; its image and volume are the checkout and a folder."""
    if reason := why_no_lab():
        pytest.skip(reason)
    trainer = resources[1]["spec"]["trainer"]
    words = [word.replace(WORKSPACE, str(tmp_path)) for word in trainer["command"][2:]]
    command = [
        *[sys.executable, str(checkout / "launch_single_task.py"), f"--model={TASK}"],
        *[word for word in words if not word.startswith(("--model", "--data_dir"))],
        *["--max_steps=3", "--workers=0", "--no-evaluate"],
    ]
    with Lab(hosts=trainer["numNodes"], cpus=1) as lab:
        processes = []
        for host in range(trainer["numNodes"]):
            variables = {
                "PET_NNODES": str(trainer["numNodes"]),
                "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
                "PET_NODE_RANK": str(host),
                "PET_MASTER_ADDR": lab.hosts[0].address,
                "PET_MASTER_PORT": "29500",
                "GLOO_SOCKET_IFNAME": INTERFACE,  # a lab has no names, as pods have
                "GALLERY_CACHE_DIR": os.environ.get("GALLERY_CACHE_DIR", str(tmp_path / "cache")),
            }
            with (tmp_path / f"host{host}.txt").open("w") as said:
                processes.append(
                    lab.popen(host, command, environment=variables, stdout=said, stderr=said)
                )
        codes = [process.wait(timeout=150) for process in processes]
    said = "".join((tmp_path / f"host{host}.txt").read_text() for host in range(2))
    assert codes == [0, 0], said
    results = json.loads((tmp_path / "runs" / "resnet50" / "results.json").read_text())
    assert (results["world_size"], results["steps"]) == (2, 3)

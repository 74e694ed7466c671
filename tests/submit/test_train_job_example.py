"""The example for Kubernetes has only fields that exist, and a command that the launcher takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api import models

from gallery_lib.cli.main import LAUNCH

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


def test_its_command_is_one_that_the_launcher_takes(resources: list[dict[str, Any]]) -> None:
    _, script, *words = resources[1]["spec"]["trainer"]["command"]
    assert script.endswith("launch_single_task.py")
    config, _ = LAUNCH.parse(words)
    assert config.run_dir and config.run_dir.startswith(WORKSPACE)

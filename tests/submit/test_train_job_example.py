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
    return list(yaml.safe_load_all((checkout / "docs/examples/train_job.yaml").read_text()))


def test_its_resources_have_no_field_that_kubernetes_does_not_know(
    resources: list[dict[str, Any]],
) -> None:
    """A field that a model does not know is not in what it writes."""
    claim, job = resources
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    for model, part in (
        (models.TrainerV1alpha1TrainJob, job),
        (models.IoK8sApimachineryPkgApisMetaV1ObjectMeta, claim["metadata"]),
        (models.IoK8sApiCoreV1PersistentVolumeClaimSpec, claim["spec"]),
    ):
        assert model.from_dict(part).to_dict() == part


def test_its_workers_share_the_claim_and_have_a_command_that_the_launcher_takes(
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
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    _, script, *words = trainer["command"]
    config, _ = LAUNCH.parse(words)
    assert script.endswith("launch_single_task.py") and config.run_dir.startswith(WORKSPACE)


def test_the_image_has_what_the_command_names_and_is_not_root(
    resources: list[dict[str, Any]], checkout: Path
) -> None:
    lines = (checkout / "docs/examples/Dockerfile").read_text().splitlines()
    copies = [line.split()[1:] for line in lines if line.startswith("COPY ")]
    copied = {name for words in copies if words[0] != "--from=build" for name in words[:-1]}
    assert {"requirements.lock", "gallery_lib", "launch_single_task.py"} <= copied
    assert all((checkout / name).exists() for name in copied)
    sent = (checkout / "docs/examples/Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in sent if line.startswith("!")} == copied
    (user,) = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert f'"runAsUser": {user}' in json.dumps(resources[1]["spec"]["runtimePatches"])
    folder, _, name = resources[1]["spec"]["trainer"]["command"][1].rpartition("/")
    assert [name, f"{folder}/"] in copies and f"WORKDIR {WORKSPACE}" in lines

"""A TrainJob for Kubernetes: its manifest, what a cluster is told, and its command on two hosts.

No test here has a cluster. The manifest is held against Kubeflow Trainer's typed models; an HTTP
server stands for the cluster's API; and the container's command runs on two hosts of a lab with the
variables that Kubeflow Trainer sets.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.conftest import why_no_lab
from kubeflow_trainer_api import models
from refusal import check_refused_command, refused

from gallery_lib.cli.main import main
from gallery_lib.cluster import Lab
from gallery_lib.cluster.network import INTERFACE
from gallery_lib.config import KubernetesConfig, TrainConfig
from gallery_lib.submit import kubernetes, program, train_job

TASK = f"{Path(__file__).parents[1] / 'helpers' / 'tiny_task.py'}:TASK"
TYPES = {
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
}


def manifests(target: str = TASK, **asked: Any) -> list[dict[str, Any]]:
    job = program.of(target, TrainConfig(lr=0.1), (), check_data=False)
    return train_job.manifests(job, KubernetesConfig(**{"claim": "data", **asked}))


@pytest.mark.parametrize("restarts", [None, 3])
def test_manifests_have_no_field_that_the_resources_do_not_have(restarts: int | None) -> None:
    resources = manifests(
        nodes=2, gpus_per_node=8, cpus_per_node=32, mem="64Gi", namespace="team", restarts=restarts
    )
    text = train_job.yaml_text(resources)
    again = list(yaml.safe_load_all(text))
    assert [resource["kind"] for resource in again] == [
        *["TrainingRuntime"] * bool(restarts),
        "TrainJob",
    ]
    for resource in again:
        typed = TYPES[resource["kind"]].from_dict(resource)
        assert typed is not None
        # A field that the model does not know is not in what it writes.
        assert typed.to_dict() == resource


def test_a_train_job_says_what_runs_where_with_which_volume() -> None:
    (job,) = manifests(nodes=2, gpus_per_node=8, mem="64Gi", name="night", grace=300)
    assert (job["apiVersion"], job["metadata"]["name"]) == (train_job.API_VERSION, "night")
    spec = job["spec"]
    assert spec["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "ClusterTrainingRuntime",
        "name": "torch-distributed",
    }
    trainer = spec["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": "8", "memory": "64Gi"}
    assert trainer["command"][:3] == [*train_job.LAUNCHER, f"--model={TASK}"]
    assert {"--lr=0.1", "--run_dir=/workspace/runs/night"} <= set(trainer["command"])
    # Kubeflow Trainer refuses a job that sets these itself.
    assert not [one for one in trainer["env"] if one["name"].startswith("PET_")]
    (patch,) = spec["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]["spec"]
    assert node["name"] == pod["containers"][0]["name"] == "node"
    assert pod["volumes"][0] == {
        "name": "workspace",
        "persistentVolumeClaim": {"claimName": "data"},
    }
    assert pod["containers"][0]["volumeMounts"][0] == {
        "name": "workspace",
        "mountPath": "/workspace",
    }
    assert pod["terminationGracePeriodSeconds"] == 300
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_restarts_need_a_runtime_of_the_jobs_own() -> None:
    runtime, job = manifests(restarts=3)
    assert job["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == "task"
    jobs = runtime["spec"]["template"]["spec"]
    assert jobs["failurePolicy"] == {"maxRestarts": 3}
    assert jobs["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 0
    assert runtime["spec"]["mlPolicy"]["torch"] == {}


@pytest.mark.parametrize(
    ("asked", "parameter", "values"),
    [
        ({"claim": None}, "claim", ["--claim", "kubectl get pvc"]),
        ({"name": "Night_1"}, "name", ["'Night_1'"]),
        ({"name": "n" * 41}, "name", ["40"]),
        ({"mem": "much"}, "mem", ["'much'"]),
        ({"submit": True, "dry_run": True}, "submit", ["--dry-run"]),
        ({"nproc_per_node": 4, "gpus_per_node": 2}, "nproc_per_node", ["=4", "2 GPU"]),
    ],
)
def test_options_that_make_no_job_are_refused(
    asked: dict[str, Any], parameter: str, values: list[str]
) -> None:
    with refused(parameter, *values):
        manifests(**asked)


def test_the_command_prints_the_manifest_and_refuses_wrong_training_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["submit", "kubernetes", TASK, "--claim=data"]
    assert main([*words, "--lr=0.5"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert "--lr=0.5" in printed["spec"]["trainer"]["command"]
    for wrong, value in (("--lr=x", "lr='x'"), ("--run_dir=a", "/workspace/runs")):
        check_refused_command(main([*words, wrong]), capsys.readouterr().err, value)


@pytest.mark.parametrize(
    ("missing", "call", "package"),
    [
        ("kubeflow_trainer_api", train_job.models, "kubernetes"),
        ("kubeflow.trainer", lambda: kubernetes.submit([], KubernetesConfig()), "kubectl apply"),
    ],
)
def test_without_its_packages_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: str, call: Any, package: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with refused("kubernetes" if missing.endswith("api") else "submit", "install", package):
        call()


class Api(HTTPServer):
    """API of a cluster that notes requests, and refuses TrainJobs where `refuses`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, str, Any]] = []
        self.refuses = False


class _Handler(BaseHTTPRequestHandler):
    server: Api

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or "null")
        path = self.path.partition("?")[0]
        if "trainer.kubeflow.org" in path:
            self.server.seen.append((self.command, path, body))
        refuses = self.server.refuses and path.endswith("/trainjobs")
        answer = {"message": "admission webhook denied it", "items": []} if refuses else body or {}
        self.send_response(403 if refuses else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def use_kubeconfig(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Have Kubernetes' client read this file; it looks at KUBECONFIG once, when imported."""
    from kubernetes.config import kube_config

    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Yield a server that stands for the API of the cluster in the kubectl context."""
    server = Api()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "u", "user": {}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
        ],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    use_kubeconfig(monkeypatch, tmp_path / "kubeconfig")
    yield server
    server.shutdown()
    server.server_close()


PLACE = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team"


def test_submit_creates_exactly_what_is_printed(api: Api) -> None:
    resources = manifests(restarts=2)
    kubernetes.submit(resources, KubernetesConfig(submit=True))
    posted = [(path, body) for method, path, body in api.seen if method == "POST"]
    assert posted == [
        (f"{PLACE}/trainingruntimes", resources[0]),
        (f"{PLACE}/trainjobs", resources[1]),
    ]


def test_what_a_cluster_refuses_leaves_nothing_behind(api: Api) -> None:
    api.refuses = True
    with refused("submit", "TrainJob task", "admission webhook denied it"):
        kubernetes.submit(manifests(restarts=2), KubernetesConfig(submit=True))
    assert [method for method, path, _ in api.seen if path.endswith("/trainingruntimes/task")] == [
        "DELETE"
    ]


def test_without_a_cluster_nothing_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kubeconfig(monkeypatch, tmp_path / "none")
    with refused("submit", "no cluster is at hand"):
        kubernetes.submit(manifests(), KubernetesConfig(submit=True))


def test_the_image_has_what_the_command_names_and_is_not_root(checkout: Path) -> None:
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
    assert [line[1] for line in words if line[:1] == ["USER"]] == [str(train_job.USER)]
    folder, _, name = train_job.LAUNCHER[1].rpartition("/")
    assert ["COPY", name, f"{folder}/"] in words
    assert f"WORKDIR {train_job.WORKSPACE}" in lines


@pytest.mark.cluster
@pytest.mark.slow
def test_the_containers_command_trains_on_two_hosts(tmp_path: Path, checkout: Path) -> None:
    """Kubeflow Trainer sets these variables; its image and volume are the checkout and a folder."""
    if reason := why_no_lab():
        pytest.skip(reason)
    (job,) = manifests(nodes=2, name="night")
    trainer = job["spec"]["trainer"]
    command = [
        *[sys.executable, str(checkout / "launch_single_task.py")],
        *[word.replace(train_job.WORKSPACE, str(tmp_path)) for word in trainer["command"][2:]],
        *["--max_steps=3", "--workers=0", "--no-evaluate"],
    ]
    with Lab(hosts=2, cpus=1) as lab:
        processes = []
        for host in range(2):
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
    results = json.loads((tmp_path / "runs" / "night" / "results.json").read_text())
    assert (results["world_size"], results["steps"]) == (2, 3)

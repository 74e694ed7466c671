"""Manifests for Kubeflow Trainer, made of its typed models (`kubeflow-trainer-api`).

A TrainJob says what runs, on how many nodes, with which volume; a runtime of the cluster
(`torch-distributed`) says how. What a TrainJob may not say, how often the job is restarted as a
whole, stands in a TrainingRuntime of its own, which is written only where that was asked for.

Every container runs the same command. Kubeflow Trainer tells it in `PET_*` variables which node it
is (`comm.scheduler`, and torchrun itself). Nothing here needs a cluster.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from gallery_lib.config import KubernetesConfig, command_line
from gallery_lib.errors import InputError
from gallery_lib.submit import program
from gallery_lib.submit.program import AGENT, Program
from gallery_lib.system.extras import install_command

API_VERSION = "trainer.kubeflow.org/v1alpha1"
WORKSPACE = "/workspace"
"""Where the volume is in each container."""
LAUNCHER = ("python3", "/opt/gallery/launch_single_task.py")
"""Launcher of tasks in the image of docs/examples/Dockerfile."""
USER = 1000
"""User of the image."""
_MANAGER = "gallery.lib/submit"
_NODE = "node"  # Kubeflow Trainer's name for the job that trains, and for its container
_STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
_MOST_LETTERS = 40  # pods have longer names, made of it
_MEMORY = re.compile(r"\d+(\.\d+)?([kMGT]|[KMGT]i)?")


def models() -> Any:
    """Return the package of Kubeflow Trainer's typed models.

    Raises:
        InputError: it is not installed; the message has the command.
    """
    try:
        from kubeflow_trainer_api import models as typed
    except ImportError:
        raise InputError(
            "a TrainJob is made of the typed models of Kubeflow Trainer, which are not installed: "
            f"{install_command('kubernetes')}",
            parameter="kubernetes",
        ) from None
    return typed


def name_of(job: Program, config: KubernetesConfig) -> str:
    """Return the name of the TrainJob, which is also that of the run's folder."""
    name = config.name or re.sub(r"[^a-z0-9-]", "-", job.name.lower())[:_MOST_LETTERS].strip("-")
    if len(name) > _MOST_LETTERS or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise InputError(
            f"name={name!r} must begin with a letter, and consist of at most {_MOST_LETTERS} small "
            "letters, digits and dashes.",
            parameter="name",
        )
    return name


def check(config: KubernetesConfig) -> str:
    """Return the claim of the volume; raise InputError for options that make no job."""
    if config.mem is not None and not _MEMORY.fullmatch(config.mem):
        raise InputError(f"mem={config.mem!r} must be like 64Gi.", parameter="mem")
    if config.claim is None:
        raise InputError(
            "--claim is missing: the PersistentVolumeClaim that has the data and keeps runs and "
            "checkpoints (kubectl get pvc lists those of a namespace).",
            parameter="claim",
        )
    if config.submit and config.dry_run:
        raise InputError("--submit and --dry-run exclude each other.", parameter="submit")
    return config.claim


def command(job: Program, name: str) -> list[str]:
    """Return the command of each container."""
    if job.config is None:
        return ["python3", *AGENT, *job.words]
    config = dataclasses.replace(job.config, run_dir=f"{WORKSPACE}/runs/{name}")
    model = f"--model={config.model}"
    return [
        *LAUNCHER,
        model,
        *(word for word in command_line.words_of(config) if word != model),
    ]


def _environment(typed: Any) -> list[Any]:
    variables = {
        "GALLERY_RUNS_DIR": f"{WORKSPACE}/runs",
        "GALLERY_CACHE_DIR": f"{WORKSPACE}/cache",
        "HOME": "/tmp",  # the image's user has no folder of its own
        "PYTHONUNBUFFERED": "1",
    }
    return [typed.IoK8sApiCoreV1EnvVar(name=name, value=text) for name, text in variables.items()]


def _resources(typed: Any, config: KubernetesConfig) -> Any:
    quantity = typed.IoK8sApimachineryPkgApiResourceQuantity
    asked = {
        "nvidia.com/gpu": config.gpus_per_node,
        "cpu": config.cpus_per_node,
        "memory": config.mem,
    }
    amounts = {name: quantity(str(amount)) for name, amount in asked.items() if amount is not None}
    if not amounts:
        return None
    return typed.IoK8sApiCoreV1ResourceRequirements(limits=amounts, requests=amounts)


def _patch(typed: Any, config: KubernetesConfig, claim: str) -> Any:
    """Return the runtime's patch: the volume, memory that processes share, the user, the grace."""
    volumes = [
        typed.IoK8sApiCoreV1Volume(
            name="workspace",
            persistentVolumeClaim=typed.IoK8sApiCoreV1PersistentVolumeClaimVolumeSource(
                claimName=claim
            ),
        ),
        # A container has 64 MB of /dev/shm otherwise, through which loaders and NCCL send.
        typed.IoK8sApiCoreV1Volume(
            name="shared-memory",
            emptyDir=typed.IoK8sApiCoreV1EmptyDirVolumeSource(medium="Memory"),
        ),
    ]
    mount = typed.IoK8sApiCoreV1VolumeMount
    container = typed.TrainerV1alpha1ContainerPatch(
        name=_NODE,
        volumeMounts=[
            mount(name="workspace", mountPath=WORKSPACE),
            mount(name="shared-memory", mountPath="/dev/shm"),
        ],
        securityContext=typed.IoK8sApiCoreV1SecurityContext(allowPrivilegeEscalation=False),
    )
    pod = typed.TrainerV1alpha1PodSpecPatch(
        containers=[container],
        volumes=volumes,
        terminationGracePeriodSeconds=config.grace,
        securityContext=typed.IoK8sApiCoreV1PodSecurityContext(
            runAsNonRoot=True, runAsUser=USER, fsGroup=USER
        ),
    )
    template = typed.TrainerV1alpha1JobTemplatePatch(
        spec=typed.TrainerV1alpha1JobSpecPatch(
            template=typed.TrainerV1alpha1PodTemplatePatch(spec=pod)
        )
    )
    replicated = typed.TrainerV1alpha1ReplicatedJobPatch(name=_NODE, template=template)
    spec = typed.TrainerV1alpha1JobSetTemplatePatch(
        spec=typed.TrainerV1alpha1JobSetSpecPatch(replicatedJobs=[replicated])
    )
    return typed.TrainerV1alpha1RuntimePatch(
        manager=_MANAGER,
        trainingRuntimeSpec=typed.TrainerV1alpha1TrainingRuntimeSpecPatch(template=spec),
    )


def _runtime(typed: Any, config: KubernetesConfig, name: str) -> Any:
    """Return a TrainingRuntime like `torch-distributed` that restarts the job as a whole."""
    container = typed.IoK8sApiCoreV1Container(name=_NODE, image=config.image)
    pod = typed.IoK8sApiCoreV1PodTemplateSpec(
        spec=typed.IoK8sApiCoreV1PodSpec(containers=[container], restartPolicy="Never")
    )
    template = typed.IoK8sApiBatchV1JobTemplateSpec(
        metadata=_metadata(typed, labels={_STEP_LABEL: "trainer"}),
        # One pod that fails ends the job, and the JobSet starts all of them again.
        spec=typed.IoK8sApiBatchV1JobSpec(backoffLimit=0, template=pod),
    )
    jobs = typed.JobsetV1alpha2JobSetSpec(
        replicatedJobs=[typed.JobsetV1alpha2ReplicatedJob(name=_NODE, template=template)],
        failurePolicy=typed.JobsetV1alpha2FailurePolicy(maxRestarts=config.restarts),
    )
    return typed.TrainerV1alpha1TrainingRuntime(
        apiVersion=API_VERSION,
        kind="TrainingRuntime",
        metadata=_metadata(typed, name=name, namespace=config.namespace),
        spec=typed.TrainerV1alpha1TrainingRuntimeSpec(
            mlPolicy=typed.TrainerV1alpha1MLPolicy(
                numNodes=1, torch=typed.TrainerV1alpha1TorchMLPolicySource()
            ),
            template=typed.TrainerV1alpha1JobSetTemplateSpec(spec=jobs),
        ),
    )


def _metadata(typed: Any, **values: Any) -> Any:
    return typed.IoK8sApimachineryPkgApisMetaV1ObjectMeta(**values)


def manifests(job: Program, config: KubernetesConfig) -> list[dict[str, Any]]:
    """Return the resources to create, in this order: a TrainingRuntime where needed, the TrainJob.

    Raises:
        InputError: for options that make no job, and without the typed models.
    """
    claim, name = check(config), name_of(job, config)
    typed = models()
    resources = []
    kind, runtime = "ClusterTrainingRuntime", config.runtime
    if config.restarts is not None:
        kind, runtime = "TrainingRuntime", name
        resources.append(_runtime(typed, config, name))
    spec = typed.TrainerV1alpha1TrainJobSpec(
        runtimeRef=typed.TrainerV1alpha1RuntimeRef(
            apiGroup=API_VERSION.partition("/")[0], kind=kind, name=runtime
        ),
        trainer=typed.TrainerV1alpha1Trainer(
            image=config.image,
            command=command(job, name),
            env=_environment(typed),
            numNodes=config.nodes,
            numProcPerNode=program.processes(config.nproc_per_node, config.gpus_per_node),
            resourcesPerNode=_resources(typed, config),
        ),
        runtimePatches=[_patch(typed, config, claim)],
    )
    resources.append(
        typed.TrainerV1alpha1TrainJob(
            apiVersion=API_VERSION,
            kind="TrainJob",
            metadata=_metadata(
                typed,
                name=name,
                namespace=config.namespace,
                labels={"app.kubernetes.io/created-by": "gallery"},
            ),
            spec=spec,
        )
    )
    return [resource.to_dict() for resource in resources]


def yaml_text(resources: list[dict[str, Any]]) -> str:
    """Return manifests as YAML documents for kubectl."""
    import yaml

    return yaml.safe_dump_all(resources, sort_keys=False, explicit_start=len(resources) > 1)

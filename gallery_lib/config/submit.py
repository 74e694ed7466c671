"""Options of `gallery submit`, which hands a training to a scheduler (submit/)."""

from __future__ import annotations

from dataclasses import dataclass

from gallery_lib.config.options import option


@dataclass(frozen=True)
class JobSize:
    """Options of every job: its nodes, and the processes on each."""

    nodes: int = option(1, "Nodes of the job.", unit="hosts", minimum=1)
    gpus_per_node: int | None = option(
        None,
        "GPUs on each node, one training process for each. Default: none is asked for.",
        unit="processes",
        minimum=1,
    )
    nproc_per_node: int | None = option(
        None,
        "Training processes on each node. Default: gpus_per_node, else 1.",
        unit="processes",
        minimum=1,
    )


@dataclass(frozen=True)
class SlurmConfig(JobSize):
    """Options of `gallery submit slurm`: what the job asks Slurm for."""

    cpus_per_node: int | None = option(
        None, "CPUs on each node. Default: the cluster's own.", unit="cores", minimum=1
    )
    mem: str | None = option(
        None, "Memory on each node: 64G; 0 is all of it. Default: the cluster's own."
    )
    time: str | None = option(
        None,
        "Time limit, as Slurm writes it: 90 (minutes), 12:00:00, 2-00:00:00. "
        "Default: the partition's.",
    )
    partition: str | None = option(None, "Partition. Default: the cluster's own.")
    account: str | None = option(None, "Account that is charged. Default: your own.")
    qos: str | None = option(None, "Quality of service. Default: the cluster's own.")
    constraint: str | None = option(None, "Features that the nodes must have. Default: any nodes.")
    sbatch: str | None = option(
        None, "More options for sbatch, as one text in quotes, as they stand in its manual."
    )
    setup: str | None = option(
        None, "Shell command of the batch file before the training: 'module load cuda'."
    )
    job_name: str | None = option(None, "Name of the job. Default: that of the task or script.")
    notice: int = option(
        120,
        "Time before the limit at which the training is told to save and stop. "
        "Raise it where a checkpoint takes long.",
        unit="seconds",
        minimum=10,
        maximum=65_535,
    )
    requeues: int = option(
        100,
        "How often the job may be queued again to go on. 0: never.",
        unit="times",
        minimum=0,
    )
    max_restarts: int = option(
        0,
        "How often the processes are started again on their nodes, without a new place in the "
        "queue, when one of them fails. They go on from the last checkpoint.",
        unit="times",
        minimum=0,
    )
    dry_run: bool = option(False, "Print the batch file and end. Nothing is written or queued.")


@dataclass(frozen=True)
class KubernetesConfig(JobSize):
    """Options of `gallery submit kubernetes`: what the TrainJob asks the cluster for."""

    image: str = option(
        "gallery:latest",
        "Image of the containers, as the cluster can pull it: that of docs/examples/Dockerfile, "
        "or one made of it.",
    )
    claim: str | None = option(
        None,
        "PersistentVolumeClaim for data, runs and checkpoints, mounted at /workspace. "
        "With several nodes all of them must be able to write to it (ReadWriteMany).",
    )
    cpus_per_node: int | None = option(
        None, "CPUs on each node. Default: the namespace's own.", unit="cores", minimum=1
    )
    mem: str | None = option(None, "Memory on each node: 64Gi. Default: the namespace's own.")
    name: str | None = option(
        None,
        "Name of the TrainJob and of its folder in /workspace/runs. "
        "Default: that of the task or script.",
    )
    namespace: str | None = option(None, "Namespace. Default: that of your kubectl context.")
    runtime: str = option("torch-distributed", "ClusterTrainingRuntime that the TrainJob extends.")
    restarts: int | None = option(
        None,
        "How often the job starts again as a whole when a pod fails; a TrainingRuntime of "
        "its own is written for that. Default: as the runtime has it.",
        unit="times",
        minimum=0,
    )
    grace: int = option(
        120,
        "Time that a pod has to save and stop when it is evicted.",
        unit="seconds",
        minimum=1,
        maximum=86_400,
    )
    submit: bool = option(
        False,
        "Hand the manifest to the cluster of your kubectl context. Default: print it and end.",
    )
    dry_run: bool = option(False, "Print the manifest and end, which is also the default.")

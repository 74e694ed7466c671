"""Command `gallery submit`: hand a training to Slurm or Kubernetes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gallery_lib.config import KubernetesConfig, SlurmConfig, TrainConfig
from gallery_lib.config.command_line import CommandLine

_FIXED = {"model": TrainConfig().model}
_WHY = {
    "model": "the task stands behind `submit slurm` or `submit kubernetes`",
    "nnodes": "say --nodes",
    "node_rank": "the scheduler numbers the hosts",
    "master_addr": "the first host of the job is the place where processes meet",
    "master_port": "each job has a port of its own",
}


def _target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TASK",
        help="a name from `gallery list`, FILE.py:NAME, or a script of your own (train.py)",
    )


_SLURM = CommandLine(
    "gallery submit slurm",
    "Write a batch file for a task or a script, and queue it with sbatch.\n"
    "One agent starts on each node. Before its time limit, or when it is preempted, the job saves "
    "its state and is queued again.",
    (SlurmConfig, TrainConfig),
    _target,
    _FIXED,
    _WHY,
    behind_dashes="ARGUMENTS OF THE SCRIPT",
)
_KUBERNETES = CommandLine(
    "gallery submit kubernetes",
    "Write a task or a script as a TrainJob of Kubeflow Trainer, and print it; --submit hands it "
    "to a cluster.",
    (KubernetesConfig, TrainConfig),
    _target,
    {**_FIXED, "run_dir": None},
    {**_WHY, "run_dir": "the run is in /workspace/runs, in a folder named like the job"},
    behind_dashes="ARGUMENTS OF THE SCRIPT",
)
LINE = CommandLine(
    "gallery submit",
    "A training as a job: gallery submit slurm, kubernetes.",
    actions={"slurm": _SLURM, "kubernetes": _KUBERNETES},
)


def _slurm(arguments: Sequence[str]) -> None:
    config, training, namespace, words = _SLURM.parse(arguments)
    from gallery_lib.submit import batch_file, program, slurm

    if not config.dry_run:
        slurm.command("sbatch")
    folder = program.folder(training.run_dir, namespace.target)
    batch_file.check(config, folder)
    job = program.of(namespace.target, training, words)
    if config.dry_run:
        print(batch_file.text(job, config, folder), end="")
        return
    number = slurm.submit(job, config, folder)
    print(f"job {number} is queued: {folder}")
    print(f"`gallery jobs` shows it, `scancel {number}` ends it; log: {folder}/slurm-{number}.out")


def _kubernetes(arguments: Sequence[str]) -> None:
    config, training, namespace, words = _KUBERNETES.parse(arguments)
    from gallery_lib.submit import kubernetes, program, train_job

    train_job.check(config)
    job = program.of(namespace.target, training, words, check_data=False)
    manifests = train_job.manifests(job, config)
    if not config.submit:
        print(train_job.yaml_text(manifests), end="")
        return
    kubernetes.submit(manifests, config)
    print(f"TrainJob {train_job.name_of(job, config)} is created: kubectl get trainjobs")


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words behind it."""
    actions = {"slurm": _slurm, "kubernetes": _kubernetes}
    if not arguments or arguments[0] not in actions:
        LINE.parse(arguments)
    actions[arguments[0]](arguments[1:])

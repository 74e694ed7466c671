"""Text of a batch file for Slurm.

srun starts one agent on each node. The agents meet on the job's first node, at a port made of the
job's number. The batch shell gets SIGUSR1 before the time limit and passes it on, so that the
training saves its state. Then, and whenever the training ends with exit code 75, the job is queued
again with the same number and folder, and goes on from there.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

from gallery_lib.comm.scheduler import FIRST_PORT, PORTS
from gallery_lib.config import SlurmConfig, command_line
from gallery_lib.errors import InputError
from gallery_lib.submit import program
from gallery_lib.submit.program import Program
from gallery_lib.system.exit_codes import GO_ON_LATER

COMMENT = "gallery:"
"""Beginning of a job's comment, by which `gallery jobs` knows it; the run's folder follows."""
FILE = "slurm-job.sh"
_TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED|infinite")
_MEMORY = re.compile(r"\d+[KMGT]?")
_PLAIN = re.compile(r"[^\s\"'\\#;$`<>]+")


def check(config: SlurmConfig, folder: Path) -> None:
    """Raise InputError for values that have no place in a batch file."""
    if config.time is not None and not _TIME.fullmatch(config.time):
        raise InputError(
            f"time={config.time!r} must be a time as Slurm writes it: 90 (minutes), 12:00:00, "
            "2-00:00:00.",
            parameter="time",
        )
    if config.mem is not None and not _MEMORY.fullmatch(config.mem):
        raise InputError(f"mem={config.mem!r} must be like 64G, or 0.", parameter="mem")
    for name in ("partition", "account", "qos", "constraint", "job_name"):
        value = getattr(config, name)
        if value is not None and not _PLAIN.fullmatch(value):
            raise InputError(f"{name}={value!r} must be one word without quotes.", parameter=name)
    for name in ("sbatch", "setup"):
        if "\n" in (getattr(config, name) or ""):
            raise InputError(f"{name} must be one line.", parameter=name)
    if re.search(r"[\s\"'\\%$`]", str(folder)):
        raise InputError(
            f"run_dir={folder}: the folder of a job must have no space, quote, backslash, $ or % "
            "in its path: Slurm reads them as something else. Name another folder.",
            parameter="run_dir",
        )


def _extra(words: str | None) -> list[str]:
    """Return the options of `--sbatch`, each with its value."""
    try:
        parts = shlex.split(words or "")
    except ValueError as error:
        raise InputError(f"sbatch={words!r} cannot be read: {error}.", parameter="sbatch") from None
    lines: list[str] = []
    for part in parts:
        if part.startswith("-"):
            lines.append(part if "=" not in part else _quoted(part))
        elif lines and "=" not in lines[-1]:
            lines[-1] += f" {shlex.quote(part)}"
        else:
            raise InputError(
                f"sbatch={words!r}: {part!r} is no option; options begin with a dash.",
                parameter="sbatch",
            )
    return lines


def _quoted(option: str) -> str:
    name, _, value = option.partition("=")
    return f'{name}="{value}"' if re.search(r"\s", value) else option


def _directives(job: Program, config: SlurmConfig, folder: Path) -> list[str]:
    asked = {
        "job-name": config.job_name or job.name,
        "comment": f"{COMMENT}{folder}",
        "nodes": config.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": config.gpus_per_node,
        "cpus-per-task": config.cpus_per_node,
        "mem": config.mem,
        "time": config.time,
        "partition": config.partition,
        "account": config.account,
        "qos": config.qos,
        "constraint": config.constraint,
        "output": f"{folder}/slurm-%j.out",
        "open-mode": "append",
    }
    lines = [f"--{name}={value}" for name, value in asked.items() if value is not None]
    if config.requeues:
        lines += ["--requeue", f"--signal=B:USR1@{config.notice}"]
    else:
        lines += ["--no-requeue", f"--signal=B:USR1@{config.notice}"]
    return [f"#SBATCH {line}" for line in [*lines, *_extra(config.sbatch)]]


def _agent(job: Program, config: SlurmConfig, folder: Path) -> list[str]:
    """Return the agent's command, a line for each group of words; variables are the shell's."""
    each = program.processes(config.nproc_per_node, config.gpus_per_node)
    python = shlex.quote(program.python())
    if job.config is None:
        agent = [
            f"{python} {shlex.join(program.AGENT)}",
            f'--nnodes="$SLURM_NNODES" --nproc-per-node={each}',
            '--rdzv-backend=c10d --rdzv-endpoint="$head_node:$port" --rdzv-id="$SLURM_JOB_ID"',
            f"--max-restarts={config.max_restarts} --log-dir={folder}/ranks --tee=3",
        ]
        return [*agent, shlex.join(job.words)]
    model = f"--model={job.config.model}"
    options = command_line.words_of(dataclasses.replace(job.config, run_dir=str(folder)))
    words = [model, *(word for word in options if word != model)]
    lines = [
        f"{python} {shlex.join(program.launcher())}",
        f'--nnodes="$SLURM_NNODES" --nproc_per_node={each}',
    ]
    if config.max_restarts:
        lines.append(f"--max_restarts={config.max_restarts}")
    if config.nodes > 1 and config.max_restarts:
        lines.append('--rdzv_endpoint="$head_node:$port" --rdzv_id="$SLURM_JOB_ID"')
    elif config.nodes > 1:
        lines.append('--master_addr="$head_node" --master_port="$port"')
    return [*lines, shlex.join(words)]


_RENDEZVOUS = f"""\
# The agents of all nodes meet on the first one, at a port that is this job's own.
head_node=${{MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}}
port=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))
"""
_SIGNALS = """\
# torchrun passes the notice on to the processes, and waits so long for them to save and end.
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 PET_SHUTDOWN_TIMEOUT={notice}
"""
_NOTICE = """\
# Slurm tells this shell before the time limit. The training saves its state and ends.
step= time_is_up=
trap 'time_is_up=yes; kill -USR1 $step' USR1
"""
_WAIT = """\
step=$!

code=0
wait "$step" || code=$?
while kill -0 "$step" 2>/dev/null; do
    code=0
    wait "$step" || code=$?
done
"""
_REQUEUE = """
# The same job once more, from its last state: it has said so (exit code {later}), or time was up.
if [[ $code == {later} || ($code != 0 && -n $time_is_up) ]]; then
    if ((${{SLURM_RESTART_COUNT:-0}} < {requeues})); then
        scontrol requeue "$SLURM_JOB_ID" && exit 0
    fi
    echo "job $SLURM_JOB_ID is not queued again: it was {requeues} times." >&2
fi
"""


def text(job: Program, config: SlurmConfig, folder: Path) -> str:
    """Return the batch file of a job whose run is in `folder`."""
    check(config, folder)
    setup = f"{config.setup}\n\n" if config.setup else ""
    cpus = (
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # srun no longer takes it from sbatch\n"
        if config.cpus_per_node
        else ""
    )
    signals = _SIGNALS.format(notice=config.notice) if job.config is None else ""
    output = f"--output={folder}/slurm-%j-node%n.out --open-mode=append"
    step = " \\\n    ".join([f"srun {output}", *_agent(job, config, folder)])
    return "\n".join(
        [
            "#!/bin/bash",
            *_directives(job, config, folder),
            "",
            "set -u",
            f"{setup}{_RENDEZVOUS}{cpus}{signals}",
            'echo "$(date -Is) job $SLURM_JOB_ID on $SLURM_JOB_NODELIST,'
            ' start $((${SLURM_RESTART_COUNT:-0} + 1))"',
            "",
            _NOTICE,
            f"{step} &",
            _WAIT
            + (
                _REQUEUE.format(later=GO_ON_LATER, requeues=config.requeues)
                if config.requeues
                else ""
            )
            + "exit $code\n",
        ]
    )

"""A real Slurm on a lab: a controller and nodes, each on a host with its own network and name.

Everything it writes is in one folder, its munge has a socket of its own there, and every daemon
runs below a supervisor, so nothing is left when the block ends. No cgroups, no accounting.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gallery_lib.cluster import Lab

CONTROLLER = "controller"
_TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "unshare")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def why_no_slurm() -> str | None:
    """Return why this machine cannot have the cluster, or None when it can."""
    missing = [name for name in _TOOLS if not shutil.which(name, path=_PATH)]
    if missing:
        return f"no {', '.join(missing)}: apt-get install --no-install-recommends slurm-wlm munge"
    if os.geteuid() != 0:
        return "hosts with names of their own need root"
    return None


class SlurmCluster:
    """Cluster of a controller (host 0 of the lab) and `nodes` nodes with two GPUs each in name."""

    def __init__(self, folder: Path, lab: Lab) -> None:
        self.folder, self.lab = folder, lab
        self.names = [CONTROLLER, *(f"node{number}" for number in range(1, len(lab.hosts)))]
        self._environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}

    def start(self) -> None:
        """Write the configuration, start all daemons and wait until the nodes are idle."""
        self._configure()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = {"socket": "munge.socket", "key-file": key.name, "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        words = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._start("munged", 0, ["munged", "--foreground", "--force", *words])
        self.until(lambda: (self.folder / "munge.socket").exists(), "munged has no socket")
        self._start(CONTROLLER, 0, ["slurmctld", "-D"])
        for number in range(1, len(self.names)):
            self.start_node(number)
        states = ("sinfo", "--noheader", "--partition=main", "--format=%T")
        self.until(lambda: self.run(*states).stdout.split() == ["idle"], "the nodes are not idle")

    def _configure(self) -> None:
        pairs = zip(self.lab.hosts, self.names, strict=True)
        hosts = [f"{host.address} {name}" for host, name in pairs]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
        (self.folder / "state").mkdir()
        for number in range(2):
            (self.folder / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        here = self.folder
        node_list = f"node[1-{len(self.names) - 1}]"
        (self.folder / "slurm.conf").write_text(
            f"ClusterName=lab\nSlurmctldHost={CONTROLLER}\nSlurmUser=root\nSlurmdUser=root\n"
            f"AuthType=auth/munge\nAuthInfo=socket={here}/munge.socket,cred_expire=6\n"
            f"StateSaveLocation={here}/state\nSlurmdSpoolDir={here}/spool-%n\n"
            f"SlurmctldPidFile={here}/slurmctld.pid\nSlurmdPidFile={here}/slurmd-%n.pid\n"
            f"SlurmctldLogFile={here}/slurmctld.log\nSlurmdLogFile={here}/slurmd-%n.log\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n"
            "JobAcctGatherType=jobacct_gather/none\nMpiDefault=none\nReturnToService=2\n"
            "AccountingStorageType=accounting_storage/none\nGresTypes=gpu\n"
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
            "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
            "SlurmdTimeout=10\nKillWait=15\nMinJobAge=300\n"
            "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=1\n"
            f"NodeName={node_list} CPUs=2 RealMemory=1000 Gres=gpu:2 State=UNKNOWN\n"
            "PartitionName=main Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 State=UP\n"
            "PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=9 State=UP\n"
        )

    def _popen(self, host: int, command: list[str], **streams: Any) -> subprocess.Popen[Any]:
        """Start a command under the host's own name."""
        hosts = f"mount --bind {self.folder}/hosts /etc/hosts"
        prepare = f'hostname {self.names[host]} && {hosts} && exec "$@"'
        words = ["unshare", "--uts", "--mount", "sh", "-c", prepare, "sh", *command]
        return self.lab.popen(host, words, environment=self._environment, **streams)

    def _start(self, name: str, host: int, command: list[str]) -> None:
        with (self.folder / f"{name}.err").open("a") as said:
            self._popen(host, command, stdout=said, stderr=said)

    def start_node(self, number: int) -> None:
        """Start the daemon of a node."""
        node = self.names[number]
        (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        self._start(node, number, ["slurmd", "-D"])

    def kill_node(self, number: int) -> None:
        """Kill every process of a node at once, as a power failure does."""
        for pid in self.lab.processes(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def run(self, *command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command on the controller, where users log in, to its end."""
        pipe = subprocess.PIPE
        process = self._popen(0, list(command), stdout=pipe, stderr=pipe, text=True)
        said, errors = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command, process.returncode, said, errors)

    def job(self, number: str) -> dict[str, str]:
        """Return what scontrol says of a job."""
        said = self.run("scontrol", "--oneliner", "show", "job", number).stdout
        return dict(part.split("=", 1) for part in said.split() if "=" in part)

    def wait_for(self, number: str, *states: str, seconds: float = 90) -> dict[str, str]:
        """Return what scontrol says of a job as soon as it is in one of the states."""
        seen: dict[str, str] = {}

        def arrived() -> bool:
            nonlocal seen
            seen = self.job(number)
            return seen.get("JobState") in states

        self.until(arrived, f"job {number} is not {' or '.join(states)}", seconds, lambda: seen)
        return seen

    def until(
        self, condition: Any, problem: str, seconds: float = 30, seen: Any = lambda: ""
    ) -> None:
        """Wait until the condition holds; fail with the daemons' last words when it is too late."""
        deadline = time.monotonic() + seconds
        while not condition():
            logs = self.folder.glob("*.err")
            tails = "".join(f"\n== {file.name}\n{file.read_text()[-1500:]}" for file in logs)
            assert time.monotonic() < deadline, f"{problem} in time; {seen()}{tails}"
            time.sleep(0.3)


@contextlib.contextmanager
def slurm_cluster(folder: Path, nodes: int = 2) -> Iterator[SlurmCluster]:
    """Context: a cluster that is up, with one core's worth of time for each host."""
    folder.mkdir(parents=True)
    with Lab(hosts=nodes + 1, cpus=1) as lab:
        cluster = SlurmCluster(folder, lab)
        cluster.start()
        yield cluster

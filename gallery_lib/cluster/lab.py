"""Make, use and take down a lab from Python, and run one command on every host of it.

Such a lab ends with the `with` block, and with this process however that ends. `Lab.named("lab")`
opens one that `gallery lab up` made.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from gallery_lib.cluster import cpu, keeper, network, state
from gallery_lib.cluster.state import Host, State
from gallery_lib.config import LabConfig, LabRunConfig, options
from gallery_lib.console.text import text_table
from gallery_lib.errors import InputError, RunFailed, did_you_mean
from gallery_lib.system import hardware
from gallery_lib.system.processes import (
    OUTPUT,
    PYTHON,
    Relay,
    end_supervised,
    start_supervised,
)


class Lab:
    """A lab whose hosts are numbered from 0.

    The object owns what it has made: the end of a `with` block, or of this process, ends it.

    Args:
        hosts: how many.
        rate: of each host's link, in either direction: `1gbit`, `100mbit`.
        cpus: cores' worth of time for each host; default: an equal part of this machine's.
        name: for `gallery lab status` and `down`; default: a new one.

    Raises:
        InputError: for values that make no sense, before anything is made.
        LabUnavailable: on entering, where the machine cannot have a lab.

    Example:
        >>> from gallery_lib.cluster.lab import Lab
        >>> with Lab(hosts=2, rate="100mbit") as lab:  # needs root, or user namespaces
        ...     lab.cut(1)
        ...     lab.popen(0, ["true"]).wait()
        0
    """

    def __init__(
        self,
        hosts: int = 2,
        rate: str = "1gbit",
        cpus: float | None = None,
        name: str | None = None,
    ) -> None:
        lab_id = secrets.token_hex(4)
        values = {"hosts": hosts, "rate": rate, "cpus": cpus, "name": name or f"lab-{lab_id}"}
        config = options.from_mapping(LabConfig, values)
        state.file_of(config.name)  # which refuses what is no name of a file
        bits_per_second, cores = network.bits_per_second(config.rate), hardware.cores()
        if config.cpus is not None and config.cpus > cores:
            raise InputError(
                f"cpus={config.cpus:g} for each host: this machine has {cores} core(s).",
                parameter="cpus",
            )
        own = config.cpus or cores / config.hosts
        lab_hosts = tuple(
            Host(number, network.address(number), bits_per_second, own)
            for number in range(config.hosts)
        )
        share = cpu.choose(lab_id, config.hosts, own)
        self._state = State(config.name, lab_id, time.time(), lab_hosts, share)
        self._keeper: subprocess.Popen[str] | None = None
        self._started: list[subprocess.Popen[Any]] = []

    @classmethod
    def named(cls, name: str) -> Lab:
        """Return the lab of that name that is up, without owning it: it stays.

        Raises:
            InputError: where there is none.
        """
        lab_state = state.read(name)
        if lab_state is None or not keeper.alive(lab_state):
            raise InputError(
                f"no lab `{name}` is up.{did_you_mean(name, keeper.names_up())} One is made by: "
                f"gallery lab up --name {name}",
                parameter="name",
            )
        lab = cls.__new__(cls)
        lab._state, lab._keeper, lab._started = lab_state, None, []
        return lab

    # ----------------------------------------------------------------------------------------------
    # Being made and ending

    def up(self) -> Lab:
        """Make the lab and return it; first clear what killed processes have left of others."""
        network.check()
        with state.locked():
            keeper.clear_leftovers()
            if state.file_of(self.name).exists():
                raise InputError(
                    f"a lab `{self.name}` is up already. Take it down (gallery lab down --name "
                    f"{self.name}), or choose another name.",
                    parameter="name",
                )
            try:
                self._make()
            except BaseException:
                if self._keeper is not None:
                    self._keeper.kill()
                    self._keeper.communicate()
                keeper.clear(self._state)
                raise
        return self

    def _make(self) -> None:
        state.write(self._state)
        self._keep(cpu=cpu.make(self._state.cpu, self.hosts))
        self._keeper = keeper.start(self.name)
        user_namespace = keeper.makes_user_namespace(self._keeper)
        self._keep(keeper=self._keeper.pid, user_namespace=user_namespace)
        network.make(self._state)
        self._keep(complete=True)

    def _keep(self, **changes: Any) -> None:
        self._state = dataclasses.replace(self._state, **changes)
        state.write(self._state)

    def detach(self) -> None:
        """Have the lab outlive this process, until `gallery lab down`."""
        assert self._keeper is not None
        keeper.detach(self._keeper)
        self._keeper = None

    def down(self) -> None:
        """End the lab's processes and remove all of it. Does nothing when it is gone."""
        with state.locked():
            keeper.clear(self._state)
        for process in self._started:
            end_supervised(process)
        if self._keeper is not None:
            self._keeper.communicate()
            self._keeper = None

    def __enter__(self) -> Lab:
        return self.up()

    def __exit__(self, *error: object) -> None:
        self.down()

    # ----------------------------------------------------------------------------------------------
    # What it is, and what is done with it

    @property
    def name(self) -> str:
        """Return the lab's name, from which the name of its file is made."""
        return self._state.name

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts, with their addresses and rates."""
        return self._state.hosts

    @property
    def cpu_share(self) -> str:
        """Return how hosts get their share of the cores, or `none` and the reason."""
        return cpu.shown(self._state.cpu)

    def processes(self, host: int) -> list[int]:
        """Return the ids of the processes in a host, as seen outside it."""
        return network.in_host(self._state, host)

    def described(self) -> str:
        """Return the lab and a table of its hosts; links are emulated, whatever their rate."""
        rows = [["host", "address", "rate of the emulated link", "cores", "processes"]]
        for host in self.hosts:
            cpus, inside = f"{host.cpus:.2f}", str(len(self.processes(host.number)))
            rows.append([host.name, host.address, network.rate_text(host.rate), cpus, inside])
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._state.began))
        rights = "in a user namespace" if self._state.user_namespace else "as root"
        head = f"lab `{self.name}`, made {since} {rights}\nCPU share: {self.cpu_share}"
        return f"{head}\n\n{text_table(rows)}"

    def popen(
        self,
        host: int,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command on a host; return its supervisor, which runs outside the host.

        `terminate()` on the supervisor ends the command and all that it has started, and so does
        the end of this process. The command itself is among `processes(host)`.

        Args:
            host: number of the host.
            command: the words of the command.
            environment: variables on top of this process's own.
            **arguments: arguments of subprocess.Popen.
        """
        share = cpu.joining(self._state.cpu, self.hosts[host])
        words = [*share, *network.entering(self._state, host), *command]
        process = start_supervised(words, environment or {}, **arguments)
        self._started = [*(other for other in self._started if other.poll() is None), process]
        return process

    def cut(self, host: int) -> None:
        """Cut the host's cable: nothing arrives and nothing leaves, and nobody is told."""
        network.set_cut(self._state, host, True)

    def mend(self, host: int) -> None:
        """Mend the host's cable."""
        network.set_cut(self._state, host, False)


# --------------------------------------------------------------------------------------------------
# One command on every host of a lab at once


_PORT = 29400
"""Port on host 0, where the processes meet. Each lab has a network of its own."""
_LOOK_SECONDS = 0.05
_READ_SECONDS = 10


def _start(
    lab: Lab, host: Host, command: Sequence[str], config: LabRunConfig, logs: str
) -> subprocess.Popen[Any]:
    processes = config.nproc_per_node if config.torchrun else 1
    threads, first = max(1, int(host.cpus // processes)), lab.hosts[0].address
    variables = {
        "NODE_RANK": str(host.number),
        "NNODES": str(len(lab.hosts)),
        "MASTER_ADDR": first,
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": network.INTERFACE,
        "TP_SOCKET_IFNAME": network.INTERFACE,
        "NCCL_SOCKET_IFNAME": network.INTERFACE,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(threads),
        # hosts have no name server, and torch warns of that at each connection
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        "PYTHONUNBUFFERED": "1",
    }
    torchrun = [
        *(*PYTHON, "-m", "gallery_lib.launcher.torchrun"),
        *(f"--nnodes={len(lab.hosts)}", f"--node-rank={host.number}"),
        *(f"--nproc-per-node={processes}", f"--master-addr={first}"),
        *(f"--master-port={_PORT}", f"--log-dir={logs}/{host.name}"),
    ]
    return lab.popen(
        host.number,
        [*(torchrun if config.torchrun else ()), *command],
        environment=variables,
        stderr=subprocess.STDOUT,
        **OUTPUT,
    )


def _say(name: str, line: str) -> None:
    print(f"{name} | {line.rstrip()}\n", end="", flush=True)  # one write, so that lines stay whole


def run_on_hosts(lab: Lab, command: Sequence[str], config: LabRunConfig) -> None:
    """Run `command` on every host of the lab to its end; show each line behind its host's name.

    Raises:
        InputError: without a command.
        RunFailed: when it fails on a host; the commands on the other hosts have been ended then.
    """
    if not command:
        raise InputError(
            "gallery lab run needs what it is to run, behind two dashes: "
            "gallery lab run -- train.py --lr 0.1",
            parameter="command",
        )
    processes: list[subprocess.Popen[Any]] = []
    readers: list[Relay] = []

    def failed() -> int | None:
        return next((n for n, process in enumerate(processes) if process.poll()), None)

    with TemporaryDirectory(prefix="gallery-lab-") as logs:
        try:
            for host in lab.hosts:
                processes.append(process := _start(lab, host, command, config, logs))
                assert process.stdout is not None
                readers.append(Relay(process.stdout, functools.partial(_say, host.name)))
            while failed() is None and any(one.poll() is None for one in processes):
                time.sleep(_LOOK_SECONDS)
            first = failed()
        finally:
            for process in processes:
                end_supervised(process)
            for reader in readers:
                reader.close(_READ_SECONDS)
    if first is not None:
        others = " The commands on the other hosts have been ended." if len(processes) > 1 else ""
        code = processes[first].returncode
        raise RunFailed(f"{lab.hosts[first].name} ended with exit code {code}.{others}")

"""Make, use and take down a lab from Python.

Such a lab ends with the `with` block, and with this process however that ends. `Lab.named("lab")`
opens one that `gallery lab up` made.
"""

from __future__ import annotations

import dataclasses
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gallery_lib.cluster import cpu, keeper, link_rate, network, requirements, state
from gallery_lib.cluster.requirements import LabUnavailable
from gallery_lib.cluster.state import Host, State
from gallery_lib.config import LabConfig, options
from gallery_lib.console.table import text_table
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import hardware
from gallery_lib.system.processes import end_supervised, start_supervised


def _planned(config: LabConfig, lab_id: str) -> State:
    state.check_name(config.name)
    bits_per_second = link_rate.bits_per_second(config.rate)
    if config.cpus is not None and config.cpus > hardware.cores():
        raise InputError(
            f"cpus={config.cpus:g} for each host: this machine has {hardware.cores()} core(s).",
            parameter="cpus",
        )
    cpus = config.cpus or cpu.default_cpus(config.hosts)
    hosts = tuple(Host(n, network.address(n), bits_per_second, cpus) for n in range(config.hosts))
    return State(config.name, lab_id, time.time(), hosts, cpu.choose(lab_id, config.hosts, cpus))


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
        ...     lab.set_rate(1, "10mbit")
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
        self._state = _planned(options.from_mapping(LabConfig, values), lab_id)
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
            up = keeper.names_up()
            known_names = f" There are: {', '.join(up)}." if up else ""
            raise InputError(
                f"no lab `{name}` is up.{did_you_mean(name, up)}{known_names} One is made by: "
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
        requirements.check()
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
    # What it is

    @property
    def name(self) -> str:
        """Return the lab's name, from which the name of its file is made."""
        return self._state.name

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts, with their addresses and rates as they are now."""
        return self._state.hosts

    @property
    def cpu_share(self) -> str:
        """Return how hosts get their share of the cores, or `none` and the reason."""
        return cpu.shown(self._state.cpu)

    @property
    def has_cpu_shares(self) -> bool:
        """Return whether hosts have CPU shares."""
        return self._state.cpu.kind != "none"

    def processes(self, host: int) -> list[int]:
        """Return the ids of the processes in a host, as seen outside it."""
        return network.in_host(self._state, self._number(host))

    def described(self) -> str:
        """Return the lab and a table of its hosts; links are emulated, whatever their rate."""
        rows = [["host", "address", "rate of the emulated link", "CPU share", "processes"]]
        for host in self.hosts:
            link = link_rate.shown(host.rate) + (", cut" if host.cut else "")
            cpus = f"{host.cpus * host.slowed:.2f} cores" if self.has_cpu_shares else "none"
            cpus += f" (slowed down to {host.slowed:g})" if host.slowed < 1 else ""
            rows.append(
                [host.name, host.address, link, cpus, str(len(self.processes(host.number)))]
            )
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._state.began))
        rights = "in a user namespace" if self._state.user_namespace else "as root"
        head = f"lab `{self.name}`, made {since} {rights}\nCPU share: {self.cpu_share}"
        return f"{head}\n\n{text_table(rows)}"

    def _number(self, host: int) -> int:
        if isinstance(host, bool) or not isinstance(host, int) or not 0 <= host < len(self.hosts):
            raise InputError(
                f"host={host!r}: the lab `{self.name}` has hosts 0 to {len(self.hosts) - 1}.",
                parameter="host",
            )
        return host

    # ----------------------------------------------------------------------------------------------
    # What is done with it

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
        number = self._number(host)
        place = [*cpu.joining(self._state.cpu, number), *network.entering(self._state, number)]
        process = start_supervised([*place, *command], environment or {}, **arguments)
        self._started = [*(other for other in self._started if other.poll() is None), process]
        return process

    def _change(self, host: int, **values: Any) -> None:
        """Record a change of a host in the lab's file, which others may have changed meanwhile."""
        with state.locked():
            kept = state.read(self.name)
            if kept is None or kept.id != self._state.id or not keeper.alive(kept):
                raise InputError(f"the lab `{self.name}` is not up any more.", parameter="name")
            self._state = kept.changed(host, **values)
            state.write(self._state)

    def set_rate(self, host: int, rate: str) -> None:
        """Set another rate for a host's link, in both directions."""
        bits_per_second = link_rate.bits_per_second(rate)
        self._change(self._number(host), rate=bits_per_second)
        network.set_rate(self._state, host, bits_per_second)

    def cut(self, host: int) -> None:
        """Cut the host's cable: nothing arrives and nothing leaves, and nobody is told."""
        self._change(self._number(host), cut=True)
        network.set_cut(self._state, host, True)

    def mend(self, host: int) -> None:
        """Mend the host's cable."""
        self._change(self._number(host), cut=False)
        network.set_cut(self._state, host, False)

    def slow_down(self, host: int, share: float) -> None:
        """Leave a host this part of its CPU share, above 0 and up to 1 (all of it again).

        Raises LabUnavailable where hosts have no quotas.
        """
        number = self._number(host)
        if not 0 < share <= 1:
            raise InputError(
                f"share={share!r} of a host's CPU time must be above 0, and at most 1.",
                parameter="share",
            )
        if self._state.cpu.folder is None:
            raise LabUnavailable(
                f"a host can be slowed down where it has a quota; here it has {self.cpu_share}. "
                "Needed: a writable cgroup."
            )
        self._change(number, slowed=share)
        cpu.set_quota(self._state.cpu, number, self.hosts[number].cpus * share)

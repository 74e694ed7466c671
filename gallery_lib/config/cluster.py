"""Options of `gallery lab`, which emulates several hosts on this machine (cluster/)."""

from __future__ import annotations

from dataclasses import dataclass

from gallery_lib.config.options import option


@dataclass(frozen=True)
class LabConfig:
    """Options of `gallery lab up`: hosts on this machine with emulated links (see cluster/)."""

    hosts: int = option(2, "Hosts of the lab.", unit="hosts", minimum=1, maximum=64)
    rate: str = option(
        "1gbit",
        "Rate of each host's link, in either direction, in bits per second: 100mbit, 2.5gbit.",
    )
    cpus: float | None = option(
        None,
        "Cores' worth of time for each host. Default: an equal part of all.",
        unit="cores",
        minimum=0.05,
    )
    name: str = option("lab", "Name of the lab. Give one to have several labs up.")


@dataclass(frozen=True)
class LabRunConfig:
    """Options of `gallery lab run`, which starts a command on every host of a lab."""

    nproc_per_node: int = option(
        1, "Processes that torchrun starts on each host.", unit="processes", minimum=1
    )
    torchrun: bool = option(
        True,
        "Start a Python script over torchrun. Switched off: start any command, once on each host.",
    )
    master_port: int = option(
        29400, "Port on host 0, where the processes meet.", minimum=1, maximum=65535
    )
    name: str = option("lab", "Name of the lab.")


@dataclass(frozen=True)
class LabNameConfig:
    """Options of `gallery lab down`: the lab to take down."""

    name: str = option("lab", "Name of the lab.")

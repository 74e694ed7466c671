"""Command `gallery lab`: several emulated hosts on one machine."""

from __future__ import annotations

from collections.abc import Sequence

from gallery_lib.config import LabConfig, LabNameConfig, LabRunConfig
from gallery_lib.config.command_line import CommandLine
from gallery_lib.errors import did_you_mean

_LAB_UP = CommandLine(
    "gallery lab up",
    "Make hosts on this machine: network namespaces joined by a bridge, "
    "with shaped links and CPU shares of their own.\n"
    "They stay until `gallery lab down`. Needs root or user namespaces; exit code 2, with what is "
    "needed, where it has neither.",
    (LabConfig,),
)
_LAB_RUN = CommandLine(
    "gallery lab run",
    "Run a Python script over torchrun, or any command, on every host of a lab.\n"
    "Each gets NODE_RANK, NNODES, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME. "
    "Exit code 0: it ended with 0 on all;\n"
    "1: it failed on one, and the others were ended.",
    (LabRunConfig,),
    behind_dashes="SCRIPT.py or COMMAND …",
)
_LAB_STATUS = CommandLine(
    "gallery lab status",
    "Show the labs that are up: hosts, addresses, rates, CPU shares, processes.",
)
_LAB_DOWN = CommandLine(
    "gallery lab down",
    "End a lab and all its processes, and clear what killed commands have left of others.",
    (LabNameConfig,),
)
LINE = CommandLine(
    "gallery lab",
    "Several hosts on one machine, with emulated links: gallery lab up, run, status, down.",
    actions={"up": _LAB_UP, "run": _LAB_RUN, "status": _LAB_STATUS, "down": _LAB_DOWN},
)


def _lab_up(arguments: Sequence[str]) -> None:
    (config,) = _LAB_UP.parse(arguments)
    from gallery_lib.cluster import Lab

    lab = Lab(config.hosts, config.rate, config.cpus, config.name).up()
    lab.detach()
    print(lab.described())


def _lab_run(arguments: Sequence[str]) -> None:
    config, command = _LAB_RUN.parse(arguments)
    from gallery_lib.cluster import Lab, run

    run.run(Lab.named(config.name), command, config)


def _lab_status(arguments: Sequence[str]) -> None:
    _LAB_STATUS.parse(arguments)
    from gallery_lib.cluster import Lab, keeper

    labs = [Lab.named(name).described() for name in keeper.names_up()]
    print("\n\n".join(labs) or "no lab is up.")


def _lab_down(arguments: Sequence[str]) -> None:
    (config,) = _LAB_DOWN.parse(arguments)
    from gallery_lib.cluster import keeper

    gone = keeper.take_down(config.name)
    for name in gone:
        print(f"the lab `{name}` is gone.")
    if config.name not in gone:
        print(f"there is no lab `{config.name}`.{did_you_mean(config.name, keeper.names_up())}")


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words behind it."""
    actions = {"up": _lab_up, "run": _lab_run, "status": _lab_status, "down": _lab_down}
    if not arguments or arguments[0] not in actions:
        LINE.parse(arguments)
    actions[arguments[0]](arguments[1:])

"""Table of a lab's hosts, links and processes."""

from __future__ import annotations

import time

from gallery_lib.cluster import link_rate, namespaces
from gallery_lib.cluster.lab import Lab
from gallery_lib.console.table import text_table


def text(lab: Lab) -> str:
    """Return the lab and its hosts as text; links are emulated, whatever their rate."""
    known = namespaces.processes()
    rows = [["host", "address", "rate of the emulated link", "CPU share", "processes"]]
    for host in lab.hosts:
        link = link_rate.shown(host.rate) + (", cut" if host.cut else "")
        cpus = f"{host.cpus * host.slowed:.2f} cores" if lab.has_cpu_shares else "none"
        if host.slowed < 1:
            cpus += f" (slowed down to {host.slowed:g})"
        rows.append(
            [host.name, host.address, link, cpus, str(len(lab.processes(host.number, known)))]
        )
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(lab.began))
    rights = "in a user namespace" if lab.user_namespace else "as root"
    return (
        f"lab `{lab.name}`, made {since} {rights}\nCPU share: {lab.cpu_share}\n\n{text_table(rows)}"
    )

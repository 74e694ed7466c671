"""Rendezvous of a run's processes, out of reach of anybody else. Needs no torch outside torchrun.

torch's stores listen on every interface and ask nobody for a secret, and torchrun unpickles what it
finds in one. So a run on one host meets in a file of a private folder, which lies in memory: a full
disk would cut the file off, and no process could read it any more. Where a script needs a store,
the store listens on the loopback address. A run on several hosts uses the address that was given
(docs/guides/several_machines.md says what its port can do).
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
MEETING_FILE = "torchrun-rendezvous"
"""File in which torchrun has its own rendezvous."""
RENDEZVOUS_FILE = "rendezvous"
"""File in which the processes of a run on one host meet."""
_SIGN_OF_LIFE_SECONDS = 600
"""Interval of torchrun's keep-alive in its rendezvous file.

Nobody else reads the file, and it only grows, so the interval is long.
"""


def loopback_interface() -> dict[str, str]:
    """Return the variables that keep gloo and NCCL on the loopback interface.

    A variable that the user has set is left out.
    """
    name = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    return {
        variable: name
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        if name and variable not in os.environ
    }


def meeting_arguments(folder: Path | str | None) -> list[str]:
    """Return the arguments of a torchrun on one host, which meets in a file of `folder`.

    None: in a new temporary file of torchrun's own.
    """
    conf = f"--rdzv-conf=store_type=file,keep_alive_interval={_SIGN_OF_LIFE_SECONDS}"
    endpoint = [f"--rdzv-endpoint={Path(folder) / MEETING_FILE}"] if folder else []
    return ["--rdzv-backend=c10d", *endpoint, conf, f"--local-addr={LOOPBACK}"]


def listening_on(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address alone; port 0 means a free one.

    Raises:
        OSError: where that cannot be.
    """
    return socket.create_server((host, port), family=socket.getaddrinfo(host, port)[0][0])


def listen_where_told() -> None:
    """Make torch's stores in this process listen on their given address alone."""
    import torch.distributed as dist

    class Store(dist.TCPStore):
        def __init__(
            self,
            host_name: str,
            port: int,
            world_size: int | None = None,
            is_master: bool = False,
            *others: Any,
            **more: Any,
        ) -> None:
            if is_master:
                listening = listening_on(host_name, port)
                port, more["master_listen_fd"] = listening.getsockname()[1], listening.detach()
            super().__init__(host_name, port, world_size, is_master, *others, **more)

    dist.TCPStore = Store  # type: ignore[misc]

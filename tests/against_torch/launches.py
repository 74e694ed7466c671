"""Launch kinds of a training, and how the processes of a case are started and ended.

Most processes are forked from a server that has imported torch once (multiprocessing's fork
server). They get the variables or the process group that the launch stands for. `torchrun` and
`spawn` are the real launchers, and take seconds.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from gallery_lib.comm import process_group
from gallery_lib.system.processes import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
_PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "helpers")))


@dataclass(frozen=True)
class Launch:
    """One kind of launch: how many processes it has, and what they find at their start.

    They may find torchrun's variables and a process group that the user makes.
    """

    world: int = 1
    variables: str = ""  # of a launcher: torchrun's, or a scheduler's
    group: str = ""  # made by the user `before` or `after` accelerate()
    command: str = ""  # a real launcher, instead of forks of the server
    share: int = 10  # of draws, in relation to others

    def variables_of(self, rank: int, port: str) -> dict[str, str]:
        """Return the variables that the launcher would set for a rank."""
        if not self.variables:
            return {}
        names = process_group.LAUNCHERS[self.variables]
        own = dict(zip(names, (rank, self.world, rank), strict=True))
        if self.variables == "torchrun":
            own |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": self.world}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return {name: str(value) for name, value in {**own, **place}.items()}


LAUNCHES: dict[str, Launch] = {
    "one": Launch(share=60),
    "one_group_before": Launch(group="before"),
    "one_group_after": Launch(group="after"),
    "one_of_torchrun": Launch(variables="torchrun"),
    "two": Launch(world=2, variables="torchrun", share=24),
    "two_group_before": Launch(world=2, variables="torchrun", group="before"),
    "two_group_without_variables": Launch(world=2, group="before"),
    "torchrun": Launch(world=2, variables="torchrun", command="torchrun", share=1),
    "spawn": Launch(world=2, group="before", command="spawn", share=1),
    "four_group_before": Launch(world=4, group="before", share=0),
    "two_group_after": Launch(world=2, group="after", share=0),
    "srun": Launch(world=2, variables="srun", share=0),
    "open_mpi": Launch(world=2, variables="Open MPI", share=0),
}


def before(name: str, side: str, rank: int, meeting: Path) -> None:
    """Create the process groups that exist before accelerate().

    These are the user's group, where the launch has one by then, and the group of the oracle's
    ranks. Processes that run case after case have one already.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        return
    if LAUNCHES[name].group == "before" or (side != "product" and LAUNCHES[name].world > 1):
        _join(name, rank, meeting)


def after(name: str, rank: int, meeting: Path) -> None:
    """Create the user's process group where the launch has one after accelerate()."""
    import torch.distributed as dist

    if LAUNCHES[name].group == "after" and not dist.is_initialized():
        _join(name, rank, meeting)


def _join(name: str, rank: int, meeting: Path) -> None:
    import torch.distributed as dist

    options: dict[str, Any] = {"timeout": timedelta(seconds=40)}
    if LAUNCHES[name].variables != "torchrun":
        options |= {"init_method": f"file://{meeting}", "rank": rank}
        options["world_size"] = LAUNCHES[name].world
    dist.init_process_group("gloo", **options)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _limit_memory() -> None:
    """Limit this process to 4 GiB of data, so that it fails before the machine has no memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (4 * 2**30, 4 * 2**30))


def _in_child(text: str, side: str, rank: int, folder: str, variables: dict[str, str]) -> None:
    """Become one rank, in a process that the server has forked."""
    die_with_parent()
    os.setsid()
    _limit_memory()
    # Workers fork, as in a script; the server's own start method would be inherited.
    mp.set_start_method("fork", force=True)
    with open(Path(folder) / f"{side}-{rank}.log", "w", buffering=1) as log:  # noqa: PTH123
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ |= variables
    from . import rank as process

    process.main(text, side, rank, folder)


def _spawned(rank: int, text: str, side: str, folder: str) -> None:
    from . import rank as process

    process.main(text, side, rank, folder)


def _spawn(text: str, side: str, folder: str, world: int) -> None:
    """Start ranks with torch.multiprocessing.spawn, from a process of its own."""
    import torch.multiprocessing

    die_with_parent()
    os.setsid()
    _limit_memory()
    torch.multiprocessing.spawn(_spawned, (text, side, folder), nprocs=world)


class Server:
    """The fork server that has imported everything, and the processes that are started with it."""

    def __init__(self) -> None:
        self.context = mp.get_context("forkserver")
        self.context.set_forkserver_preload([f"{__package__}.rank"])
        variables = {
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "PYTHONPATH": _PATHS,
        }
        # The server silently leaves out a module that it does not find.
        with patch.dict(os.environ, variables):
            forkserver.ensure_running()

    def run(self, text: str, side: str, launch: str, folder: Path, seconds: float) -> str:
        """Run all ranks of a side, and return '' or what went wrong with the processes.

        None of the processes is left afterwards.
        """
        kind = LAUNCHES[launch]
        if kind.command == "torchrun" and side == "product":
            return self._torchrun(text, side, folder, kind.world, seconds)
        if kind.command == "spawn" and side == "product":
            process = self._start(_spawn, text, side, str(folder), kind.world)
            return self._wait([process], folder, side, kind.world, seconds)
        port = str(_free_port())
        processes = [
            self._start(_in_child, text, side, rank, str(folder), kind.variables_of(rank, port))
            for rank in range(kind.world)
        ]
        return self._wait(processes, folder, side, kind.world, seconds)

    def _start(self, function: Callable[..., None], *arguments: Any) -> Any:
        process = self.context.Process(target=function, args=arguments)
        process.start()
        return process

    def _wait(
        self, processes: list[Any], folder: Path, side: str, world: int, seconds: float
    ) -> str:
        """Wait for all processes, and end those that are left.

        When one has failed, the others get at most 3 seconds more.
        """
        end = time.monotonic() + seconds
        failed = False
        while any(p.is_alive() for p in processes) and time.monotonic() < end:
            connection.wait([p.sentinel for p in processes if p.is_alive()], timeout=0.5)
            if not failed and any(p.exitcode not in (None, 0) for p in processes):
                failed, end = True, min(end, time.monotonic() + 3)
        left = [p for p in processes if p.is_alive()]
        for process in processes:
            _end(process.pid)
            process.join(10)
        if left and not failed:
            return f"no end after {seconds:.0f} s ({side})"
        signals = [-p.exitcode for p in processes if p not in left and (p.exitcode or 0) < 0]
        return f"ended by signal {signals[0]} ({side})" if signals else ""

    def _torchrun(self, text: str, side: str, folder: Path, world: int, seconds: float) -> str:
        run = ["-m", "torch.distributed.run", f"--nproc_per_node={world}", "--rdzv-backend=c10d"]
        meeting = f"--rdzv-endpoint=localhost:{_free_port()}"
        module = ["-m", f"{__package__}.rank", text, side, str(folder)]
        environment = {**os.environ, "PYTHONPATH": _PATHS}
        with (folder / f"{side}-torchrun.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *run, meeting, *module],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                return f"no end after {seconds:.0f} s ({side}, torchrun)"
            finally:
                _end(process.pid)
                process.wait(10)
        return ""


def _end(pid: int) -> None:
    """Kill a process and everything that it has started."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        everyone = [process, *process.children(recursive=True)]
        for each in everyone:
            with contextlib.suppress(psutil.Error):
                each.kill()

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
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from torch.distributed.elastic.utils.distributed import get_free_port

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


WITHOUT_CALL = ("backend", "plug")
"""Launches that never call accelerate(): torch.compile with our backend, or with our plug."""
LAUNCHES: dict[str, Launch] = {
    "one": Launch(share=60),
    "one_group_before": Launch(group="before"),
    "one_group_after": Launch(group="after"),
    "one_of_torchrun": Launch(variables="torchrun"),
    "backend": Launch(share=5),
    "plug": Launch(share=5),
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


def make_group(when: str, name: str, side: str, rank: int, meeting: Path) -> None:
    """Create the process group that exists `before` or `after` accelerate(), if there is one.

    That is the user's group, or the group of the oracle's ranks, which is made `before`. Processes
    that run case after case have one already.
    """
    import torch.distributed as dist

    oracle = side != "product" and LAUNCHES[name].world > 1
    if dist.is_initialized() or when != ("before" if oracle else LAUNCHES[name].group):
        return
    options: dict[str, Any] = {"timeout": timedelta(seconds=40)}
    if LAUNCHES[name].variables != "torchrun":
        options |= {"init_method": f"file://{meeting}", "rank": rank}
        options["world_size"] = LAUNCHES[name].world
    dist.init_process_group("gloo", **options)


def _in_child(command: str, rank: int, case: tuple[str, str, str], variables: Any) -> None:
    """Become one rank, or the launcher of all, in a process that the server has forked."""
    from .rank import main

    die_with_parent()
    os.setsid()
    # It fails before the machine has no memory.
    resource.setrlimit(resource.RLIMIT_DATA, (4 * 2**30, 4 * 2**30))
    # Workers fork, as in a script; the server's own start method would be inherited.
    mp.set_start_method("fork", force=True)
    _, side, folder = case
    with open(Path(folder) / f"{side}-{rank}.log", "w", buffering=1) as log:  # noqa: PTH123
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ |= variables
    if command == "torchrun":
        words = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
        words += [f"--rdzv-endpoint=localhost:{get_free_port()}", "-m", f"{__package__}.rank"]
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, *words, *case])
    elif command == "spawn":
        import torch.multiprocessing

        torch.multiprocessing.spawn(main, case, nprocs=2)
    else:
        main(rank, *case)


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
        command = kind.command if side == "product" else ""
        port, case = str(get_free_port()), (text, side, str(folder))
        processes: list[Any] = []
        for rank in range(1 if command else kind.world):
            variables = {"PYTHONPATH": _PATHS} if command else kind.variables_of(rank, port)
            arguments = (command, rank, case, variables)
            processes.append(self.context.Process(target=_in_child, args=arguments))
            processes[-1].start()
        return self._wait(processes, side, seconds)

    def _wait(self, processes: list[Any], side: str, seconds: float) -> str:
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


def _end(pid: int) -> None:
    """Kill a process and everything that it has started."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                each.kill()

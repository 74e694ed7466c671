"""Workspace where a fault is tried, and the command that runs in it with all that it starts."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from worker_processes import workers_of

from gallery_lib.system.processes import search_path

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts this in the background has it, and all that it starts, ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent.parent
TASKS = Path(__file__).with_name("faulty_tasks.py")
MARK = "GALLERY_FAULTS_MARK"
"""Environment variable of everything that a command starts.

It identifies a process also when its parents have gone.
"""
_LOOK_SECONDS = 0.05


@dataclass
class Workspace:
    """Folders and environment for one try.

    Tries that leave `cache` as it is may share it.
    """

    folder: Path
    cache: Path
    environment: dict[str, str] = field(default_factory=dict)

    def variables(self, mark: str) -> dict[str, str]:
        """Return the environment of a command."""
        own = {
            "GALLERY_RUNS_DIR": str(self.folder / "runs"),
            "GALLERY_CACHE_DIR": str(self.cache),
            "PYTHONPATH": search_path(),
            MARK: mark,
            "OMP_NUM_THREADS": "1",
        }
        others = {
            name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"
        }
        return {**others, **own, "HF_HUB_OFFLINE": "1", **self.environment}

    def steps(self) -> int:
        """Return how many steps the newest run has logged."""
        with contextlib.suppress(OSError, IndexError):
            logs = sorted(self.folder.rglob("log-rank0.txt"), key=lambda path: path.stat().st_mtime)
            return len(logs[-1].with_name("steps.jsonl").read_text().splitlines())
        return 0


class Command:
    """A command at work in a session of its own; `output` says where its standard output goes."""

    def __init__(self, words: Sequence[str], workspace: Workspace, output: str = "file") -> None:
        self.mark, self.workspace = uuid.uuid4().hex, workspace
        # The workspace may be a disk that is full.
        beside = Path(tempfile.mkdtemp(prefix="faults-said-"))
        self.heard, self.said = beside / "stdout.txt", beside / "stderr.txt"
        self.open_ports: dict[str, str] = {}
        self._over = threading.Event()
        stdout, shell = _output(output, words, self.heard)
        self.process = subprocess.Popen(
            shell or list(words),
            env=workspace.variables(self.mark),
            cwd=workspace.folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=self.said.open("wb"),
            start_new_session=True,
        )
        threading.Thread(target=self._watch_ports, daemon=True).start()

    def everything(self) -> list[psutil.Process]:
        """Return all live processes that the command has started, itself among them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if (
                    process.status() != psutil.STATUS_ZOMBIE
                    and process.environ().get(MARK) == self.mark
                ):
                    found.append(process)
        return found

    def _watch_ports(self) -> None:
        while not self._over.wait(0.3):
            for process in self.everything():
                with contextlib.suppress(psutil.Error):
                    for socket in process.net_connections("inet"):
                        at = socket.laddr
                        if (
                            socket.status == psutil.CONN_LISTEN
                            and not ipaddress.ip_address(at.ip).is_loopback
                        ):
                            self.open_ports[f"{at.ip}:{at.port}"] = str(process.cmdline())[:120]

    def wait_until(self, ready: Callable[[], bool], seconds: float = 120.0) -> bool:
        """Return whether `ready` became true before the command ended or the time was over."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            if ready():
                return True
            time.sleep(_LOOK_SECONDS)
        return ready()

    def ended_after(self, seconds: float) -> float | None:
        """Return the seconds until no process of the command was left.

        Return None if some are left after `seconds`.
        """
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if self.process.poll() is not None and not self.everything():
                return time.monotonic() - began
            time.sleep(0.1)
        return None

    def end(self) -> None:
        """Kill all processes that are left."""
        self._over.set()
        for process in self.everything():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
                process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)

    def text(self) -> str:
        """Return the command's standard error."""
        return self.said.read_text(errors="replace")

    def result(self) -> str:
        """Return the command's standard output."""
        return self.heard.read_text(errors="replace") if self.heard.exists() else ""


def _output(output: str, words: Sequence[str], heard: Path) -> tuple[int | None, list[str]]:
    """Return standard output for Popen and, where a shell has to connect it, the shell's words."""
    if output == "file":
        return os.open(heard, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), []
    line = {"head": '"$@" | head -n 1', "full": '"$@" > /dev/full'}[output]
    return os.open(os.devnull, os.O_WRONLY), ["bash", "-o", "pipefail", "-c", line, "bash", *words]


def workers(command: Command) -> list[psutil.Process]:
    """Return the training processes of a run, by rank."""
    found = workers_of(psutil.Process(command.process.pid))
    return sorted(found, key=lambda process: process.create_time())


@contextlib.contextmanager
def started(words: Sequence[str], workspace: Workspace, output: str = "file") -> Iterator[Command]:
    """Context: start a command, and leave nothing of it at the end."""
    command = Command(words, workspace, output)
    try:
        yield command
    finally:
        command.end()
        shutil.rmtree(command.said.parent, ignore_errors=True)

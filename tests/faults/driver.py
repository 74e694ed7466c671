"""Driver for a row of the table: prepare, start, cause the fault, wait, and check what is seen.

A fault is tried in a workspace, on a command that runs there with all that it starts.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
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
# A variable in the environment of all that a command starts, also when its parents have gone.
MARK = "GALLERY_FAULTS_MARK"


def marked(mark: str) -> list[psutil.Process]:
    """Return all live processes whose environment has MARK with that value."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@dataclass
class Workspace:
    """Folders and environment for one try; tries that leave `cache` as it is may share it."""

    folder: Path
    cache: Path
    environment: dict[str, str] = field(default_factory=dict)

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
        self._beside = Path(tempfile.mkdtemp(prefix="faults-said-"))
        self.open_ports: dict[str, str] = {}
        self._over = threading.Event()
        if shell := {"head": '"$@" | head -n 1', "full": '"$@" > /dev/full'}.get(output):
            words = ["bash", "-o", "pipefail", "-c", shell, "bash", *words]
        variables = {
            **os.environ,
            "GALLERY_RUNS_DIR": str(workspace.folder / "runs"),
            "GALLERY_CACHE_DIR": str(workspace.cache),
            "PYTHONPATH": search_path(),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            MARK: self.mark,
            **workspace.environment,
        }
        variables.pop("TORCHINDUCTOR_CACHE_DIR", None)
        self.process = subprocess.Popen(
            words,
            env=variables,
            cwd=workspace.folder,
            stdin=subprocess.DEVNULL,
            stdout=(self._beside / "stdout.txt").open("wb"),
            stderr=(self._beside / "stderr.txt").open("wb"),
            start_new_session=True,
        )
        threading.Thread(target=self._watch_ports, daemon=True).start()

    def everything(self) -> list[psutil.Process]:
        """Return all live processes that the command has started, itself among them."""
        return marked(self.mark)

    def _watch_ports(self) -> None:
        while not self._over.wait(0.3):
            for process in self.everything():
                with contextlib.suppress(psutil.Error):
                    for socket in process.net_connections("inet"):
                        at, listens = socket.laddr, socket.status == psutil.CONN_LISTEN
                        if listens and not ipaddress.ip_address(at.ip).is_loopback:
                            self.open_ports[f"{at.ip}:{at.port}"] = str(process.cmdline())[:120]

    def wait_until(self, ready: Callable[[], bool], seconds: float = 120.0) -> bool:
        """Return whether `ready` became true before the command ended or the time was over."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            if ready():
                return True
            time.sleep(0.05)
        return ready()

    def ended_after(self, seconds: float) -> float | None:
        """Return the seconds until no process of the command was left; None: some still are."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if self.process.poll() is not None and not self.everything():
                return time.monotonic() - began
            time.sleep(0.1)
        return None

    def end(self) -> None:
        self._over.set()
        for process in self.everything():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
                process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        shutil.rmtree(self._beside, ignore_errors=True)

    def stderr(self) -> str:
        return (self._beside / "stderr.txt").read_text(errors="replace")

    def stdout(self) -> str:
        return (self._beside / "stdout.txt").read_text(errors="replace")


def workers(command: Command) -> list[psutil.Process]:
    """Return the training processes of a run, by rank."""
    return sorted(
        workers_of(psutil.Process(command.process.pid)), key=lambda process: process.create_time()
    )


@contextlib.contextmanager
def started(words: Sequence[str], workspace: Workspace, output: str = "file") -> Iterator[Command]:
    """Context: start a command, and leave nothing of it at the end."""
    command = Command(words, workspace, output)
    try:
        yield command
    finally:
        command.end()


Cause = Callable[[Command], None]


@dataclass(frozen=True)
class Row:
    """A fault, how it is caused, and what must be seen."""

    kind: str  # a heading of the table
    name: str
    words: Callable[[Workspace], list[str]]  # the command, in a workspace that is ready
    cause: Cause | None = None  # what is done to the command while it runs
    at_second: float = 0.0  # when it is done: after the start of the command
    at_step: int = 0  # and once the newest run has logged so many steps
    codes: tuple[int, ...] = (0,)  # exit codes that are right
    says: str = ""  # a part of what must be said on standard error, or printed
    lines: int = 3  # largest number of lines of the message
    seconds: float = 60.0  # longest time from the cause until no process is left
    prepare: Callable[[Workspace], None] | None = None
    there: tuple[str, ...] = ()  # patterns of files that must be in the workspace afterwards
    absent: tuple[str, ...] = ()  # and of those that must not
    output: str = "file"  # where standard output goes (`Command`)
    check: Callable[[Workspace, Command], str] | None = None  # returns what is wrong, or ""
    quick: bool = False  # whether the row is an ordinary test as well


@dataclass(frozen=True)
class Seen:
    """Outcome of a row; `wrong` is empty if everything was right."""

    wrong: tuple[str, ...]
    code: int | None
    seconds: float | None
    message: str


_PROGRESS = re.compile(
    r"^(Using the environment|\S.*: .*\d+ s\b.*|imports|done in|Threads of this |\$ )"
)


def message_of(text: str) -> list[str]:
    """Return the lines of the message in a command's standard error.

    It begins at `error:` or a command's name; lines of progress and the log's last ones are no part
    of it.
    """
    lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
    start = re.compile(r"(error|[\w.]+|interrupted|stopped)\b[^ ]*: ")
    begin = next((n for n, line in enumerate(lines) if start.match(line)), len(lines))
    found = [
        line for line in lines[begin:] if not _PROGRESS.match(line) or line.startswith("error")
    ]
    end = next((n for n, line in enumerate(found) if line.startswith("Last log lines")), len(found))
    return found[:end]


def carry_out(row: Row, folder: Path, cache: Path) -> Seen:
    """Carry out the row in a new workspace, and return what was seen."""
    workspace = Workspace(folder, cache)
    folder.mkdir(parents=True, exist_ok=True)
    if row.prepare is not None:
        row.prepare(workspace)
    with started(row.words(workspace), workspace, row.output) as command:
        wrong = []
        try:
            time.sleep(row.at_second)
            if command.wait_until(lambda: workspace.steps() >= row.at_step) and row.cause:
                row.cause(command)
        except Exception as error:  # what was to be hit is not there
            wrong.append(f"not caused: {type(error).__name__}: {error}")
        took = command.ended_after(row.seconds)
        try:
            wrong += _wrong(row, workspace, command, took)
        except Exception as error:  # a file that was to be looked at is not there, or is not whole
            wrong.append(f"{type(error).__name__}: {error}")
        message = "\n".join(message_of(command.stderr())) or command.stderr()[-400:]
        return Seen(tuple(wrong), command.process.poll(), took, message)


def _wrong(row: Row, workspace: Workspace, command: Command, took: float | None) -> list[str]:
    if took is None:
        left = [" ".join(process.cmdline())[:100] for process in command.everything()]
        return [f"after {row.seconds:g} s there was still {left}"]
    code, text = command.process.returncode, command.stderr()
    there = {name: any(workspace.folder.rglob(name)) for name in (*row.there, *row.absent)}
    more = row.check(workspace, command) if row.check is not None else ""
    faults = {
        f"exit code {code}, not {' or '.join(map(str, row.codes))}": code not in row.codes,
        "a traceback": "Traceback (most recent call last)" in text,
        f"it does not say {row.says!r}": row.says not in text + command.stdout(),
        f"a message of {len(message_of(text))} lines": len(message_of(text)) > row.lines,
        f"it listens beyond loopback: {command.open_ports}": bool(command.open_ports),
        **{f"{pattern} is missing": not there[pattern] for pattern in row.there},
        **{f"{pattern} is there": there[pattern] for pattern in row.absent},
        more: bool(more),
    }
    return [fault for fault, is_so in faults.items() if is_so]

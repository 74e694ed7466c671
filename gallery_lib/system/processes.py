"""Process lifetimes: a worker dies with its parent, and a supervisor ends everything below it.

Every process that the launcher starts uses this. A supervisor also ends what has moved into
sessions of its own (torchrun's workers, data loaders, compiler workers).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gallery_lib.errors import GoOnLater, Interrupted

# Variables of the processes of a run: the file in which those on one host meet, instead of at a
# port; the private folder, which goes with the launcher; the launch time, as `now()` says it, from
# which start-up is counted.
RENDEZVOUS_VARIABLE = "GALLERY_RENDEZVOUS"
SOCKETS_VARIABLE = "GALLERY_SOCKETS"
LAUNCHED_AT_VARIABLE = "GALLERY_LAUNCHED_AT"
# This host's number, of a run that saves a checkpoint when it is told to end. Slurm sends SIGTERM
# or SIGUSR1 to every process of a job; launcher and ranks alone heed them.
HEARS_NOTICE_VARIABLE = "GALLERY_HEARS_NOTICE"
GO_ON_LATER = GoOnLater.exit_code

# Words that start this Python for a module of this package. It looks for no module in the working
# folder: a `queue.py` of the reader's there is none of ours.
PYTHON = (sys.executable, "-P")
# Arguments of Popen for a command whose output is read; a run may print any bytes.
OUTPUT: Mapping[str, Any] = {"stdout": subprocess.PIPE, "encoding": "utf-8", "errors": "replace"}
STOP_SECONDS = 8.0  # that a supervisor may take to end everything before it is killed itself

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4  # of the kernel's flags of a process


# --------------------------------------------------------------------------------------------------
# This process


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return bool(shell and "IPKernelApp" in shell.config)


def tell(line: object) -> None:
    """Print a line that is no result, on standard error.

    In a notebook it goes to standard output, since a notebook shows standard error as errors.
    """
    print(line, file=sys.stdout if in_notebook() else sys.stderr, flush=True)


def now() -> float:
    """Return the seconds since this machine was booted, the same in all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def began_at() -> float:
    """Return when this process began, as `now()` says it, to some hundredths of a second."""
    # Ticks after the boot; proc(5), field 22.
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def search_path() -> str:
    """Return PYTHONPATH for processes that import this package, wherever it lies."""
    package_root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")]))


def can_fork() -> bool:
    """Return whether training processes may be forked from one that has imported torch.

    CUDA does not survive a fork. Whether its driver is installed decides, since device files have
    different names (`/dev/nvidia0`, on WSL `/dev/dxg`).
    """
    try:
        ctypes.CDLL("libcuda.so.1")  # which initialises nothing
    except OSError:
        return True
    return False


def die_with_parent() -> None:
    """Have this process killed when the process that started it ends, however it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request took effect
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Make descendants whose parents end children of this process, so that none can slip away."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def interruptible(what: str) -> Iterator[None]:
    """Turn a KeyboardInterrupt of the decorated body into `Interrupted` with a message.

    A notebook shows the message instead of a stack of frames. The body ends its processes itself.
    """
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(
            f"{what} was stopped before its end, and all its processes have been ended. "
            "It can be started anew."
        ) from None


# --------------------------------------------------------------------------------------------------
# Exit codes


def ends(pid: int) -> bool:
    """Return whether a process is gone, or on its way: a busy machine ends a killed one later."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
    except OSError:
        return True
    lines = dict(line.split(":", 1) for line in status.splitlines())
    pending = int(lines["SigPnd"], 16) | int(lines["ShdPnd"], 16)
    return bool(pending >> (signal.SIGKILL - 1) & 1 or flags & _PF_EXITING)


def shell_exit_code(returncode: int) -> int:
    """Return a process's exit code as shells tell it, from that of `subprocess`."""
    return returncode if returncode >= 0 else 128 - returncode


def signal_of_exit_code(exit_code: int) -> signal.Signals | None:
    """Return the signal that a shell's exit code tells of, or None."""
    with contextlib.suppress(ValueError):
        return signal.Signals(exit_code - 128)
    return None


# --------------------------------------------------------------------------------------------------
# Child processes


def start_supervised(
    command: Sequence[str], environment: Mapping[str, str], **arguments: Any
) -> subprocess.Popen[Any]:
    """Start a command below a supervisor, in a session of its own; return the supervisor.

    The command has no input. `environment` are variables on top of this process's own, and
    `arguments` others of `subprocess.Popen`.
    """
    return subprocess.Popen(
        [*PYTHON, "-m", "gallery_lib.system.supervisor", str(os.getpid()), *command],
        env={**os.environ, "PYTHONPATH": search_path(), **environment},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **arguments,
    )


def end_supervised(process: subprocess.Popen[Any]) -> None:
    """Ask a supervisor to end all that is below it; kill its process group if it takes longer.

    The supervisor is the leader of a session of its own. A stopped one is resumed.
    """
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)  # a scheduler sends SIGTERM
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Relay:
    """Reader of a process's output, in a thread: an unread pipe would block the process forever.

    `say` gets each line until it fails, since its reader has gone, say. `last` are the last lines.
    """

    def __init__(
        self, output: IO[str], say: Callable[[str], object] | None, keep: int | None = 20
    ) -> None:
        self.last: deque[str] = deque(maxlen=keep)
        self._output, self._say = output, say
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._output:
            self.last.append(line.rstrip("\n"))
            try:
                if self._say is not None:
                    self._say(line.rstrip("\n"))
            except Exception:
                self._say = None

    def close(self, seconds: float = 2.0) -> None:
        """Read for so many seconds at most, then close the pipe if its other end is closed.

        A process that was left behind may hold the other end.
        """
        self._thread.join(seconds)
        if not self._thread.is_alive():  # closing would wait for a reading thread
            self._output.close()


def run_supervised(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Run a command below a supervisor and show its output; return its exit code and lines.

    Whatever interrupts this ends the command.
    """
    environment = {**environment, "PYTHONUNBUFFERED": "1"}
    lines = []
    with start_supervised(command, environment, stderr=subprocess.STDOUT, **OUTPUT) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
        except BaseException:
            end_supervised(process)
            raise
    return process.returncode, lines


def send_below(pid: int, number: signal.Signals) -> None:
    """Send a signal to every process below `pid`; SIGSTOP also to those that start meanwhile."""
    import psutil

    told: set[psutil.Process] = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        above = psutil.Process(pid)
        while new := [process for process in above.children(recursive=True) if process not in told]:
            for process in new:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            told.update(new)
            if number != signal.SIGSTOP:
                break


def end_descendants(grace_seconds: float = 3.0) -> None:
    """Send SIGTERM to every descendant of this process, then SIGKILL after the grace period.

    A stopped process is resumed, so that it hears SIGTERM.
    """
    import psutil

    me = psutil.Process()

    def tell_all(*signals: signal.Signals) -> bool:
        """Send the signals to all that live; return whether there are any."""
        any_left = False
        for process in me.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    any_left = True
                    for number in signals:
                        process.send_signal(number)
        return any_left

    tell_all(signal.SIGTERM, signal.SIGCONT)
    deadline = time.monotonic() + grace_seconds
    while tell_all() and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(20):  # a process may start another while it is being killed
        if not tell_all(signal.SIGKILL):
            break
        time.sleep(0.05)

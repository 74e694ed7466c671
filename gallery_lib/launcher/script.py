"""Run the reader's own training script, alone or with torchrun, and raise when it fails.

The output is shown as it comes. The processes stand under a supervisor: an interrupt or a killed
kernel ends them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from gallery_lib.comm.rendezvous import loopback_interface, meeting_arguments
from gallery_lib.compiler import cache
from gallery_lib.errors import RunFailed
from gallery_lib.system import hardware
from gallery_lib.system.paths import checkout
from gallery_lib.system.processes import interruptible, run_supervised

_LAST_LINES = 20


def command_of(
    path: Path, arguments: Sequence[str], *, processes: int | None, logs: Path | str
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a script, and the variables that it needs.

    `processes` of torchrun, None for plain python, share the cores. `logs` is an empty folder for
    torchrun's files, which has to stay until the script ends.
    """
    torchrun = [
        "-P",  # of torchrun alone: the script finds modules beside it
        "-m",
        "gallery_lib.launcher.torchrun",
        *meeting_arguments(logs),
        f"--log-dir={logs}",
        f"--nproc-per-node={processes}",
    ]
    start = [] if processes is None else torchrun
    environment = {
        **cache.cache_variables(),
        **loopback_interface(),
        "OMP_NUM_THREADS": str(max(1, hardware.cores() // (processes or 1))),
    }
    return [sys.executable, *start, str(path), *arguments], environment


def shown_command(path: Path, arguments: Sequence[str], *, processes: int | None) -> str:
    """Return the command line that a reader would type for the script, in the checkout."""
    root = checkout()
    file = str(path.relative_to(root)) if root and path.is_relative_to(root) else path.name
    start = ["python3"] if processes is None else ["torchrun", f"--nproc_per_node={processes}"]
    return shlex.join([*start, file, *arguments])


@interruptible("the script")
def run_script(
    path: Path | str, arguments: Sequence[str] = (), *, processes: int | None = None
) -> list[str]:
    """Run a script with plain python, or with so many torchrun processes; return what it printed.

    Raises:
        RunFailed: the script fails; the message has the last lines.
        Interrupted: the script is stopped.
    """
    path = Path(path).resolve()
    with TemporaryDirectory() as logs:
        command, environment = command_of(path, arguments, processes=processes, logs=logs)
        print("$ " + shown_command(path, arguments, processes=processes), flush=True)
        code, lines = run_supervised(command, environment)
    if code:
        raise RunFailed(
            f"{path.name} ended with exit code {code}. Its last lines:\n"
            + "\n".join(lines[-_LAST_LINES:])
        )
    return lines

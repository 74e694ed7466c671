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
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system import hardware
from gallery_lib.system.processes import interruptible, run_supervised

_LAST_LINES = 20


@interruptible("the script")
def run_script(
    path: Path | str, arguments: Sequence[str] = (), *, processes: int | None = None
) -> list[str]:
    """Run a script with plain python or with torchrun; return the lines that it printed.

    The cores are shared out among the processes.

    Args:
        path: the script.
        arguments: its arguments.
        processes: number of torchrun's processes; None: plain python.

    Raises:
        InputError: the file is missing, or there are not as many devices.
        RunFailed: the script fails; the message has the last lines.
        Interrupted: the script is stopped.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"the script {path} does not exist.", parameter="script")
    devices = hardware.gpu_count() or hardware.cores()
    if processes is not None and not 1 <= processes <= devices:
        raise InputError(
            f"processes={processes}: this host has {devices} device(s).", parameter="processes"
        )
    shown = (
        ["python", path.name]
        if processes is None
        else ["torchrun", f"--nproc_per_node={processes}", path.name]
    )
    print("$ " + shlex.join([*shown, *arguments]), flush=True)
    threads = str(max(1, hardware.cores() // (processes or 1)))
    with TemporaryDirectory() as logs:
        torchrun = [
            "-m",
            "gallery_lib.launcher.torchrun",
            *meeting_arguments(logs),
            f"--log-dir={logs}",
        ]
        start = [] if processes is None else [*torchrun, f"--nproc-per-node={processes}"]
        environment = {
            **cache.cache_variables(),
            **loopback_interface(),
            "OMP_NUM_THREADS": threads,
        }
        code, lines = run_supervised([sys.executable, *start, str(path), *arguments], environment)
    if code:
        raise RunFailed(
            f"{path.name} ended with exit code {code}. Its last lines:\n"
            + "\n".join(lines[-_LAST_LINES:])
        )
    return lines

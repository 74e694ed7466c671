"""Starts the processes of a run on one host without torchrun: `-m gallery_lib.spawn N FOLDER -m MODULE OPTIONS…`.

For comparisons: torchrun imports torch itself before it starts anything, which takes seconds, and start-up is part of
what is compared. Each process gets torchrun's variables, and a file in FOLDER to meet at instead of a port. When one
fails the others are ended, and what is said of it has the form in which torchrun says it. Needs no torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from gallery_lib.processes import RENDEZVOUS_VARIABLE, die_with_parent, end_descendants

RENDEZVOUS_FILE = "rendezvous"
_LOOK_SECONDS = 0.1


def _environment(rank: int, processes: int, rendezvous: Path) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        RENDEZVOUS_VARIABLE: rendezvous.absolute().as_uri(),
    }


def main(processes: int, folder: Path, arguments: list[str]) -> int:
    """Run `python ARGUMENTS` so many times and return the exit code: 0, or that of the first process that failed."""
    die_with_parent()
    rendezvous = folder / RENDEZVOUS_FILE
    rendezvous.unlink(missing_ok=True)
    command = [sys.executable, *arguments]
    running = [subprocess.Popen(command, env=_environment(rank, processes, rendezvous)) for rank in range(processes)]
    try:
        while True:
            codes = [process.poll() for process in running]
            failed = next((rank for rank, code in enumerate(codes) if code), None)
            if failed is not None:
                code = running[failed].returncode
                print(f"Root Cause:\n  rank      : {failed}\n  exitcode  : {code} (pid: {running[failed].pid})", file=sys.stderr)
                return code if code > 0 else 128 - code
            if None not in codes:
                return 0
            time.sleep(_LOOK_SECONDS)
    finally:
        end_descendants()
        rendezvous.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))

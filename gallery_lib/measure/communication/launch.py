"""Launcher of a measurement by several processes, on this host or those of a lab.

It returns what rank 0 wrote. What is started is a module with `main(arguments)`, which takes the
options of one class, `out` among them. On this host all processes are forked from one that has
imported the module. On a lab torchrun starts them. Both run on the CPU: a machine's GPUs would be
too few for several hosts of a lab. Both are supervised: an interrupt or a killed notebook kernel
ends them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from gallery_lib.cluster import Lab
from gallery_lib.cluster.lab import run_on_hosts
from gallery_lib.comm import process_group
from gallery_lib.config import LabRunConfig
from gallery_lib.config.options import CommandLine, words_of
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system import hardware
from gallery_lib.system.processes import PYTHON, die_with_parent, interruptible, run_supervised

_LAST_LINES = 20
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@interruptible("the measurement")
def run_on_this_host(module: str, config: Any, processes: int) -> dict[str, Any]:
    """Run the measurement on this host and return what rank 0 wrote; its lines are shown."""
    threads = str(max(1, hardware.cores() // processes))
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        forked = [*PYTHON, "-m", "gallery_lib.launcher.forked", str(processes), folder, module]
        words = [*forked, *words_of(dataclasses.replace(config, out=str(out)))]
        code, lines = run_supervised(words, {**_NO_GPU, "OMP_NUM_THREADS": threads})
        if code:
            raise RunFailed(
                f"{module} ended with exit code {code}. Its last lines:\n"
                + "\n".join(lines[-_LAST_LINES:])
            )
        return json.loads(out.read_text())


@interruptible("the measurement")
def run_on_lab(lab: Lab, module: str, config: Any, processes: int) -> dict[str, Any]:
    """Run the measurement on each host of a lab in `processes`; return what rank 0 wrote."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        words = words_of(dataclasses.replace(config, out=str(out)))
        run_on_hosts(lab, ["-m", module, *words], LabRunConfig(nproc_per_node=processes))
        return json.loads(out.read_text())


def end_after(
    body: Callable[[Any], int], options: type, arguments: Sequence[str], name: str
) -> NoReturn:
    """Parse the arguments, call `body` and end this process of a run.

    It does not wait for threads of native libraries.
    """
    die_with_parent()
    os.environ.update(_NO_GPU)

    def parsed() -> int:
        if process_group.world_size() < 2:
            raise InputError("one process has nobody to share gradients with: start two or more.")
        return body(*CommandLine(name, body.__doc__ or "", (options,)).parse(arguments))

    code = exit_code_of(parsed, error_prefix="error", interrupted="stopped")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""Make the fake device usable in every Python process below this one: Python imports this first.

Commands start processes of their own (launcher, comparison, benchmarks). This folder is on their
PYTHONPATH when `running.environment(everywhere=True)` made their environment. Processes that never
import torch, and the compiler's workers, stay as they are.

With FAKE_GPU_COMPILER=aot_eager (or eager) the compiler `inductor` is that one. Kernels that Triton
compiles do not run on this device; so models that are compiled have right values.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from after_import import after_import


def _install_device(torch: ModuleType) -> None:
    from fake_gpu import plugin

    plugin.install()


def _replace_inductor(backends: ModuleType) -> None:
    """Let the gallery's compiler go through Dynamo and autograd as always, and write no kernels."""

    def compile_in_place(model, options, device, channels_last):
        backends.compile_calls(model, backend=os.environ["FAKE_GPU_COMPILER"])
        return f"{os.environ['FAKE_GPU_COMPILER']}, on the fake device"

    backends._compile = compile_in_place


if not any("compile_worker" in word for word in sys.orig_argv):
    after_import("torch", _install_device)
    if os.environ.get("FAKE_GPU_COMPILER"):
        after_import("gallery_lib.compiler.backend", _replace_inductor)

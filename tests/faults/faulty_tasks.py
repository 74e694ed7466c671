"""Tasks with a fault of their own, for `--model tests/faults/faulty_tasks.py:NAME`."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "helpers"))

from tiny_task import TASK, loss

from gallery_lib.config.switches import compiler_enabled
from gallery_lib.train import loop

DIVERGES_AT = 5
_steps = 0


def _slow(model: nn.Module, batch: Any) -> Tensor:
    time.sleep(0.1)
    return loss(model, batch)


def _diverging(model: nn.Module, batch: Any) -> Tensor:
    """Return a loss that is not finite from step 5 on."""
    global _steps
    _steps += model.training
    value = loss(model, batch)
    return value * float("nan") if _steps >= DIVERGES_AT and model.training else value


def _diverging_accelerated(model: nn.Module, batch: Any) -> Tensor:
    return _diverging(model, batch) if compiler_enabled() else loss(model, batch)


def _printing(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss, and print much that is no text, in every process."""
    os.write(1, b"\xff\xfe no text \x1b[31m\n" * 400)
    return loss(model, batch)


def _stopped_at_its_end(*given: Any, **named: Any) -> nn.Module:
    """Return the model; rank 0 will stand still when all steps are done."""
    if os.environ.get("RANK") == "0":
        loop._results_of = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)
    return TASK.build_model(*given, **named)


SLOW = dataclasses.replace(TASK, name="slow", loss=_slow)
DIVERGES = dataclasses.replace(TASK, name="diverges", loss=_diverging)
DIVERGES_ACCELERATED = dataclasses.replace(
    TASK, name="diverges_accelerated", loss=_diverging_accelerated
)
STOPS_AT_ITS_END = dataclasses.replace(
    TASK, name="stops_at_its_end", build_model=_stopped_at_its_end
)
PRINTS = dataclasses.replace(TASK, name="prints", loss=_printing)

"""Recorder of a timeline: hooks in a real run note when each gradient has been accumulated.

On CUDA the hooks record events on the stream. The events are read when the run has ended, so the
host does not wait for the device (**run on a device in software, not on a GPU**). With several
processes it records what one of them does while nothing is communicated, with the others at work
beside it.
"""

from __future__ import annotations

import dataclasses
import time
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.measure.replay.timeline import RECORDED, Gradient, Timeline
from gallery_lib.system import hardware
from gallery_lib.train.loop import train
from gallery_lib.train.session import Observer, Session

WARMUP_STEPS = 3
_SETTINGS = (
    "batch_size",
    "image_size",
    "sequence_length",
    "amp_level",
    "compiler_opt",
    "kernels",
    "threads",
)


class Recorder(Observer):
    """Observer that records the steps of a run from step `first`, counted from 0, to its end.

    Then `timeline` is there.
    """

    timeline: Timeline

    def __init__(self, first: int) -> None:
        self._first = first
        self._began: list[Any] = []  # a mark for each step
        self._ended: list[Any] = []
        self._ready: list[list[tuple[int, Any]]] = []

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        """Add the hooks before the first recorded step."""
        if step != self._first:
            return
        propagate, cuda = session.propagate, session.loader.device.type == "cuda"

        def marked(loss: Tensor) -> None:
            self._ready.append([])
            self._began.append(_mark(cuda))
            propagate(loss)
            self._ended.append(_mark(cuda))

        session.propagate = marked
        for place, parameter in enumerate(session.plain.parameters()):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda _, place=place: self._ready[-1].append((place, _mark(cuda)))
                )

    def after_training(self, session: Session) -> None:
        """Keep the medians over the recorded steps; on CUDA this waits for the device.

        Raises:
            InputError: for a model without gradients.
        """
        session.clock.read()
        phases = {
            name: median(session.clock.phases[name][self._first : self._first + len(self._began)])
            for name in ("input", "forward", "optimizer")
        }
        ready: dict[int, list[float]] = {}
        for began, marks in zip(self._began, self._ready, strict=True):
            for place, mark in marks:
                ready.setdefault(place, []).append(_seconds(began, mark))
        if not ready:
            raise InputError(
                f"no parameter of {session.task.name} gets a gradient: there is nothing to record.",
                parameter="model",
            )
        parameters = list(session.plain.named_parameters())
        order = sorted(ready, key=lambda place: median(ready[place]))
        backward = median(
            _seconds(began, ended) for began, ended in zip(self._began, self._ended, strict=True)
        )
        gradients = tuple(
            _gradient(place, *parameters[place], median(ready[place])) for place in order
        )
        self.timeline = Timeline(
            task=session.task.name,
            origin=RECORDED,
            settings={name: getattr(session.config, name) for name in _SETTINGS}
            | {"autocast": str(session.autocast_dtype)},
            environment=hardware.machine_facts(),
            date=time.strftime("%Y-%m-%d"),
            steps=len(self._began),
            input_seconds=phases["input"],
            forward_seconds=phases["forward"],
            # The two medians may be of different steps.
            backward_seconds=max(backward, gradients[-1].ready_seconds),
            optimizer_seconds=phases["optimizer"],
            gradients=gradients,
        )


def _mark(cuda: bool) -> Any:
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds(began: Any, ended: Any) -> float:
    if isinstance(began, float):
        return ended - began
    ended.synchronize()
    return began.elapsed_time(ended) / 1000.0


def _gradient(place: int, name: str, parameter: nn.Parameter, ready_seconds: float) -> Gradient:
    return Gradient(
        name,
        place,
        tuple(parameter.shape),
        str(parameter.dtype).removeprefix("torch."),
        ready_seconds,
    )


def record(config: TrainConfig, steps: int = 5) -> Timeline:
    """Train a few steps of `config` in this process, alone, and return their timeline.

    Raises:
        InputError: for bad options or data.
    """
    recorder = Recorder(WARMUP_STEPS)
    with TemporaryDirectory() as folder:
        run: dict[str, Any] = {
            "max_steps": WARMUP_STEPS + steps,
            "warmup_steps": WARMUP_STEPS,
            "evaluate": False,
            "run_dir": folder,
        }
        train(dataclasses.replace(config, log_interval=WARMUP_STEPS + steps, **run), recorder)
    return recorder.timeline

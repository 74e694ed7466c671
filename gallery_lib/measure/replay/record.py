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
from torch import Tensor

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.measure.replay.timeline import RECORDED, Gradient, Timeline
from gallery_lib.system import hardware
from gallery_lib.train.loop import train
from gallery_lib.train.session import Observer, Session

WARMUP_STEPS = 3
_SIZES = ("batch_size", "image_size", "sequence_length")
_SETTINGS = (*_SIZES, "amp_level", "compiler_opt", "kernels", "threads")


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
        phases: dict[str, Any] = {
            f"{name}_seconds": median(times[self._first : self._first + len(self._began)])
            for name in ("input", "forward", "optimizer")
            for times in [session.clock.phases[name]]
        }
        times_of: dict[int, list[float]] = {}
        for began, marks in zip(self._began, self._ready, strict=True):
            for place, mark in marks:
                times_of.setdefault(place, []).append(_seconds(began, mark))
        if not times_of:
            raise InputError(
                f"no parameter of {session.task.name} gets a gradient: there is nothing to record.",
                parameter="model",
            )
        parameters = list(session.plain.named_parameters())
        ready = {place: median(times) for place, times in times_of.items()}
        gradients = []
        for place in sorted(ready, key=ready.__getitem__):
            name, parameter = parameters[place]
            dtype = str(parameter.dtype).removeprefix("torch.")
            gradients.append(Gradient(name, place, tuple(parameter.shape), dtype, ready[place]))
        backward = median(map(_seconds, self._began, self._ended))
        settings = {name: getattr(session.config, name) for name in _SETTINGS}
        self.timeline = Timeline(
            task=session.task.name,
            origin=RECORDED,
            settings=settings | {"autocast": str(session.autocast_dtype)},
            environment=hardware.machine_facts(),
            date=time.strftime("%Y-%m-%d"),
            steps=len(self._began),
            # The two medians may be of different steps.
            backward_seconds=max(backward, gradients[-1].ready_seconds),
            gradients=tuple(gradients),
            **phases,
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


def record(config: TrainConfig, steps: int = 5) -> Timeline:
    """Train a few steps of `config` in this process, alone, and return their timeline."""
    recorder = Recorder(WARMUP_STEPS)
    with TemporaryDirectory() as folder:
        whole = WARMUP_STEPS + steps
        config = dataclasses.replace(config, max_steps=whole, log_interval=whole, evaluate=False)
        train(dataclasses.replace(config, warmup_steps=WARMUP_STEPS, run_dir=folder), recorder)
    return recorder.timeline

"""Replay of recorded backward passes on another machine: what DDP does with them on some network.

`record` notes, in a real run of one process, when each gradient is ready, as a `Timeline`. `Replay`
makes a module of it whose backward pass waits instead of computing. It gives real gradients of the
same sizes in the same order to whatever averages them. So communication is real, and computation
takes the recorded device's time.

Time may be stretched by a factor: every wait is multiplied by it, and step times are divided by it
again. The network's rate has to be divided by the same factor, which is up to whoever makes the
network. Then this machine's own work, which is not stretched, counts for less: copies of gradients,
sockets, and what goes on within a host. Figures from here are those of a time-dilated replay, and
say so.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.system import hardware
from gallery_lib.system.files import read_json, write_json
from gallery_lib.train.loop import train
from gallery_lib.train.session import Observer, Session, mark, seconds_between

SCHEMA = 1
BYTES_OF = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Gradient:
    """The gradient of one parameter, and the time when it is ready."""

    parameter: str  # its name in the model
    place: int  # among the model's parameters, from 0: DDP's first buckets follow that order
    shape: tuple[int, ...]
    dtype: str  # one of BYTES_OF
    ready_seconds: float  # since the beginning of the backward pass

    @property
    def bytes(self) -> int:
        """Return the size of the gradient in bytes."""
        return math.prod(self.shape) * BYTES_OF[self.dtype]


@dataclass(frozen=True)
class Timeline:
    """A training step, in seconds of the recorded device."""

    task: str
    origin: str  # `recorded`, or from what it was derived, and how
    settings: dict[str, Any]  # of the run: batch_size and the like
    environment: dict[str, Any]  # hardware and versions
    date: str
    steps: int  # number of recorded steps
    input_seconds: float  # waiting for the batch
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    # In the order in which they are ready; parameters without a gradient are left out.
    gradients: tuple[Gradient, ...]
    schema: int = SCHEMA

    @property
    def step_seconds(self) -> float:
        """Return the seconds of a step without communication."""
        passes = self.forward_seconds + self.backward_seconds
        return self.input_seconds + passes + self.optimizer_seconds

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of all gradients together, which are averaged in each step."""
        return sum(gradient.bytes for gradient in self.gradients)

    @property
    def batch_size(self) -> int:
        """Return the samples in a step of one process."""
        return int(self.settings["batch_size"])


def write_timeline(path: Path, timeline: Timeline) -> None:
    """Write the timeline as JSON, atomically; make the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, dataclasses.asdict(timeline))


def read_timeline(path: Path) -> Timeline:
    """Return the timeline of a file; InputError where it is missing, damaged, or another schema."""
    try:
        return read_json(path, Timeline, schema=SCHEMA, again="Record it again.")
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist. A timeline is made by: benchmarks/network.py record",
            parameter=str(path),
        ) from None


# --------------------------------------------------------------------------------------------------
# Recorder of a timeline: hooks in a real run note when each gradient has been accumulated.
#
# On CUDA the hooks record events on the stream. The events are read when the run has ended, so the
# host does not wait for the device (**run on a device in software, not on a GPU**). With several
# processes it records what one of them does while nothing is communicated, with the others at work
# beside it.


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
            self._began.append(mark(cuda))
            propagate(loss)
            self._ended.append(mark(cuda))

        session.propagate = marked
        for place, parameter in enumerate(session.plain.parameters()):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda _, place=place: self._ready[-1].append((place, mark(cuda)))
                )

    def after_training(self, session: Session) -> None:
        """Keep the medians over the recorded steps; InputError for a model without gradients.

        On CUDA this waits for the device.
        """
        session.clock.read()
        phases: dict[str, Any] = {
            f"{name}_seconds": median(times[self._first : self._first + len(self._began)])
            for name in ("input", "forward", "optimizer")
            for times in [session.clock.phases[name]]
        }
        times_of: dict[int, list[float]] = {}
        for began, marks in zip(self._began, self._ready, strict=True):
            for place, ended in marks:
                times_of.setdefault(place, []).append(seconds_between(began, ended))
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
        backward = median(map(seconds_between, self._began, self._ended))
        settings = {name: getattr(session.config, name) for name in _SETTINGS}
        self.timeline = Timeline(
            task=session.task.name,
            origin="recorded",
            settings=settings | {"autocast": str(session.autocast_dtype)},
            environment=hardware.machine_facts(),
            date=time.strftime("%Y-%m-%d"),
            steps=len(self._began),
            # The two medians may be of different steps.
            backward_seconds=max(backward, gradients[-1].ready_seconds),
            gradients=tuple(gradients),
            **phases,
        )


def record(config: TrainConfig, steps: int = 5) -> Timeline:
    """Train a few steps of `config` in this process, alone, and return their timeline."""
    recorder = Recorder(WARMUP_STEPS)
    with TemporaryDirectory() as folder:
        whole = WARMUP_STEPS + steps
        config = dataclasses.replace(config, max_steps=whole, log_interval=whole, evaluate=False)
        train(dataclasses.replace(config, warmup_steps=WARMUP_STEPS, run_dir=folder), recorder)
    return recorder.timeline


# --------------------------------------------------------------------------------------------------
# Replay model that waits as a timeline says instead of computing; gradients come in its order.
#
# The backward pass is real autograd: a chain of nodes, one per gradient, from the first that is
# ready to the last. Each node makes its gradient, waits for its time, and hands it on. So
# DistributedDataParallel and its hooks see what they see of a real model. When communication in the
# same process is late, later waits are shorter: times count from the beginning of the pass.
#
# Parameters have the recorded shapes and no memory of their own (one value, expanded): nothing ever
# reads them.


_PATTERN_VALUES = 2**16  # after which a gradient repeats


class _Gate(torch.autograd.Function):
    """Autograd node that passes a token on.

    In the backward pass it calls `pass_through`, whose result is the gradient of `parameter`.
    """

    @staticmethod
    def forward(
        ctx: Any, token: Tensor, parameter: Tensor | None, pass_through: Callable[[], Tensor | None]
    ) -> Tensor:
        ctx.pass_through = pass_through
        return token.view_as(token)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor | None, None]:
        return gradient, ctx.pass_through(), None


class Replay(nn.Module):
    """Module that replays a timeline.

    `model()` is a forward pass. `backward()` of what it returns, and `optimizer_step()`, are the
    rest of a step. Every wait is multiplied by `stretch`. The seed of the gradients' values should
    differ by rank.
    """

    def __init__(self, timeline: Timeline, *, stretch: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        self.timeline, self.stretch = timeline, stretch
        self._pattern = torch.randn(_PATTERN_VALUES, generator=torch.Generator().manual_seed(seed))
        self._began = 0.0
        self._parameter_of = {
            gradient.place: nn.Parameter(
                torch.zeros((), dtype=getattr(torch, gradient.dtype)).expand(gradient.shape)
            )
            for gradient in sorted(timeline.gradients, key=lambda gradient: gradient.place)
        }
        self.weights = nn.ParameterList(self._parameter_of.values())

    def gradient(self, gradient: Gradient) -> Tensor:
        """Return the gradient that a backward pass gives: random values, the same in every step."""
        memory = torch.empty(gradient.bytes, dtype=torch.uint8)
        flat, size = memory.view(getattr(torch, gradient.dtype)), self._pattern.numel()
        repeated = flat.numel() // size * size
        flat[:repeated].view(-1, size).copy_(self._pattern)
        flat[repeated:].copy_(self._pattern[: flat.numel() - repeated])
        return flat.view(gradient.shape)

    def _begin(self) -> None:
        self._began = time.perf_counter()

    def _wait_until(self, seconds: float) -> None:
        """Sleep until so many unstretched seconds after `_begin`; return at once if they are over.

        The cores are free meanwhile, as they are beside a GPU that computes.
        """
        while (left := self._began + seconds * self.stretch - time.perf_counter()) > 0:
            time.sleep(left)

    def _give(self, gradient: Gradient) -> Tensor:
        tensor = self.gradient(gradient)  # made within the wait, as far as that is long enough
        self._wait_until(gradient.ready_seconds)
        return tensor

    def forward(self) -> Tensor:
        """Return a scalar, after the wait for the input and for the forward pass."""
        self._begin()
        end = functools.partial(self._wait_until, self.timeline.backward_seconds)
        token = _Gate.apply(torch.zeros((), requires_grad=True), None, end)
        for gradient in reversed(self.timeline.gradients):
            give = functools.partial(self._give, gradient)
            token = _Gate.apply(token, self._parameter_of[gradient.place], give)
        token = _Gate.apply(token, None, self._begin)
        self._wait_until(self.timeline.input_seconds + self.timeline.forward_seconds)
        return token

    def optimizer_step(self) -> None:
        """Wait as long as the optimizer took."""
        self._begin()
        self._wait_until(self.timeline.optimizer_seconds)

    def train_step(self, model: nn.Module) -> float:
        """Run a step of `model`, this one or the DDP around it; return its unstretched seconds."""
        began = time.perf_counter()
        model.zero_grad(set_to_none=True)
        model().backward()
        self.optimizer_step()
        return (time.perf_counter() - began) / self.stretch

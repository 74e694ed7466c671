"""What runs inside a reader's script: it finds the script's steps, measures them, waits for turns.

`attach()` is called once, when the script has imported torch. It sets seeds, and hooks

- `register_optimizer_step_post_hook`: a cycle ends after so many steps of optimizers as the orders
  say. A GAN with two optimizers has a cycle of two. The script waits there for its turn;
- `torch.autograd.backward`: the scalars that the script differentiates are its losses;
- `DataLoader`: waiting for a batch, and the beginning of a pass;
- the first calls of modules, up to the end of the first cycle: those from outside any module are
  the script's models. In the accelerated form they are compiled in place from then on. A first look
  keeps these hooks: it tells how long a forward pass takes.

A process that takes no step of an optimizer (a loader's, torchrun's) does nothing of this.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Client
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, dataloader

from gallery_lib.trial.attach import ORDERS_VARIABLE
from gallery_lib.trial.script_state import (
    CycleWork,
    compiled_graphs,
    compiles_itself,
    described,
    has_weights,
    inside,
    names_of,
    page_faults,
    plain,
    random_states,
    sample,
    saving,
    seed,
    weights,
)

PLAIN, ACCELERATED = "plain", "accelerated"
OPTIMIZER, ALLOCATOR, COMPILE, ALL = PARTS = ("optimizer", "allocator", "compile", "all")
"""Parts of the acceleration that can be left out; without all, both forms are the plain one."""
TECHNIQUES = PARTS[:-1]
CHECKED = 8
"""First cycles whose losses, gradients and weights are compared with those of another run."""
_TELL_SECONDS = 2.0
_ROUNDING = {torch.float32: 2**-21, torch.float64: 2**-50}
_ROUNDING_OF_HALF = 2**-10


@dataclass(frozen=True)
class Orders:
    """What a run of the script is for, as JSON in an environment variable."""

    address: str
    form: str = PLAIN
    cycle: int = 1
    """Steps of optimizers that make one step of the training."""
    number: int = 0
    """Of this run in its trial: runs that are alive together meet at ports of their own."""
    looks: bool = False
    """Whether to describe the models, and to count a cycle's operators."""
    moved: bool = False
    """Whether weights are moved by a rounding after the first cycle."""
    torchs_numbers: bool = False
    """Whether compiled code draws the random numbers that eager code draws, for a comparison."""
    without: tuple[str, ...] = ()
    """Parts of the acceleration, and graph passes, that are left out."""
    eager: tuple[str, ...] = ()
    """Modules that are left as they are in compiled models."""

    def variable(self) -> dict[str, str]:
        """Return the variable that carries these orders."""
        return {ORDERS_VARIABLE: json.dumps(dataclasses.asdict(self))}


@dataclass
class Cycle:
    """What was seen from the end of one cycle to the end of the next; times in seconds."""

    seconds: float = 0.0
    loading: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    page_faults: int = 0
    losses: list[float] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    """What else happened: an evaluation, a checkpoint, the beginning of a pass, compilation."""


EVALUATION, CHECKPOINT, NEW_PASS, COMPILATION = (
    "evaluation",
    "checkpoint",
    "beginning of a pass over the data",
    "compilation",
)
_probe: Probe | None = None


def attach() -> None:
    """Set up what the orders in the environment say, if there are any."""
    global _probe
    if _probe is None and (text := os.environ.get(ORDERS_VARIABLE)):
        values: dict[str, Any] = json.loads(text)
        lists = {name: tuple(values[name]) for name in ("without", "eager")}
        _probe = Probe(Orders(**{**values, **lists}))


class Probe:
    """The hooks of this process, and what they have seen."""

    def __init__(self, orders: Orders) -> None:
        self.orders, self._pid = orders, os.getpid()
        self._thread: int | None = None  # that takes the steps
        self._connection: Any = None
        self._budget = 0  # cycles until the next pause
        self._told = 0.0
        self._cycles: list[Cycle] = []  # since the last message
        self._now = Cycle()
        self._began = self._resumed = time.perf_counter()
        self._faults = 0
        self._done = self._steps = 0
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._order: list[int] = []
        self._step_began = 0.0
        self._backward_depth = 0
        self._losses: list[Tensor] = []
        self._hidden = False
        self._checks: list[dict[str, Any]] = []
        self._steps_noted = 0  # of the cycle that is checked
        self._roots: dict[int, nn.Module] = {}
        self._depth = threading.local()
        self._hooks: list[Any] = []
        self._is_on = False
        self._graphs = 0
        self._drew = self._half = False
        self._counter = CycleWork()
        self._said: list[str] = []
        seed()
        self._hook()

    # ---- hooks

    def _hook(self) -> None:
        optimizers.register_optimizer_step_pre_hook(self._before_step)
        optimizers.register_optimizer_step_post_hook(self._after_step)
        self._hooks = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
        ]
        torch.autograd.backward = self._timed_backward(torch.autograd.backward)
        rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
        if hasattr(rendezvous, "_create_c10d_store"):
            rendezvous._create_c10d_store = self._at_own_port(rendezvous._create_c10d_store)
        iterator = dataloader._BaseDataLoaderIter
        iterator.__next__ = self._timed_next(iterator.__next__)  # type: ignore[method-assign]
        DataLoader.__iter__ = self._marking(DataLoader.__iter__, NEW_PASS)  # type: ignore[method-assign]
        torch.save = self._marking(saving(torch.save, 1), CHECKPOINT)
        torch.jit.save = self._marking(saving(torch.jit.save, 1), CHECKPOINT)
        train = nn.Module.train

        @functools.wraps(train)
        def switched(module: nn.Module, mode: bool = True) -> nn.Module:
            models = self._roots.values()
            if not mode and any(module is root or module is inside(root) for root in models):
                self._mark(EVALUATION)
            return train(module, mode)

        nn.Module.train = switched  # type: ignore[method-assign, assignment]

    def _mark(self, what: str) -> None:
        if self._is_mine() and what not in self._now.marks:
            self._now.marks.append(what)

    def _is_mine(self) -> bool:
        """Return whether this is the thread that trains, in the process that attached."""
        return threading.get_ident() == self._thread and os.getpid() == self._pid

    def _marking(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def marking(*args: Any, **kwargs: Any) -> Any:
            self._mark(what)
            return function(*args, **kwargs)

        return marking

    def _timed_next(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(iterator: Any) -> Any:
            began = time.perf_counter()
            counted = self._count_in({})
            try:
                return function(iterator)
            finally:
                self._count_in(counted)
                if self._is_mine():
                    self._now.loading += time.perf_counter() - began

        return timed

    def _timed_backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if self._backward_depth:  # of a checkpoint, inside the script's own
                function(tensors, *args, **kwargs)
                return
            given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            if all(tensor.numel() == 1 for tensor in given):
                self._losses += [tensor.detach() for tensor in given]
            else:
                self._hidden = True
            began = time.perf_counter()
            self._backward_depth += 1
            counted = self._count_in(self._counter.passes)
            try:
                function(tensors, *args, **kwargs)
            finally:
                self._backward_depth -= 1
                self._count_in(counted)
            ended = time.perf_counter()
            self._now.backward += ended - began
            self._step_began = ended  # that of an optimizer with a closure begins behind it

        backward._torchdynamo_disable = True  # type: ignore[attr-defined]
        return backward

    def _enter(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():  # the script compiles it
            return
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        self._half |= torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        if depth or self._backward_depth:  # inside a model, or recomputed for its backward pass
            return
        self._counted_outside = self._count_in(self._counter.passes)
        self._depth.began = time.perf_counter()
        if self._done == 0:
            self._depth.numbers = random_states()
            if torch.is_grad_enabled() and has_weights(module):
                self._switch_on()
                self._roots[id(module)] = module

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth.value = depth = getattr(self._depth, "value", 1) - 1
        if depth or self._backward_depth:
            return
        self._count_in(self._counted_outside)
        if id(module) not in self._roots:
            return
        self._now.forward += time.perf_counter() - self._depth.began
        if self._done == 0:
            pairs = zip(self._depth.numbers, random_states(), strict=False)
            self._drew |= not all(one.equal(other) for one, other in pairs)

    def _at_own_port(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Move the port at which ranks meet, unless torchrun has chosen it: runs would collide."""

        @functools.wraps(function)
        def made(hostname: str, port: int, *args: Any, **kwargs: Any) -> Any:
            own = port and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
            moved = port + 7 * self.orders.number if own else port
            return function(hostname, moved if moved < 2**16 else port, *args, **kwargs)

        return made

    # ---- steps

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if os.getpid() != self._pid:
            return
        if self._connection is None:
            self._meet()
        self._switch_on()  # where no model was found
        if not any(map(callable, (*args[1:], *kwargs.values()))):  # a closure trains
            self._count_in({})
        self._step_began = time.perf_counter()

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_mine():
            return
        self._now.optimizer += time.perf_counter() - self._step_began
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = optimizer
        self._order.append(list(self._optimizers).index(id(optimizer)))
        if self._done < CHECKED:
            self._note_gradients(optimizer)
        self._steps += 1
        if self._steps % self.orders.cycle == 0:
            self._end_cycle()
        self._count_in(self._counter.between)

    def _meet(self) -> None:
        """Say who this is, and wait for the first turn."""
        self._thread = threading.get_ident()
        self._connection = Client(self.orders.address, family="AF_UNIX")
        rank, world = 0, 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._send({"rank": rank, "world": world})
        self._budget = self._receive()["cycles"]

    def _end_cycle(self) -> None:
        at, faults = time.perf_counter(), page_faults()
        now, self._now = self._now, Cycle()
        now.seconds, now.page_faults = at - self._began, faults - self._faults
        if (graphs := compiled_graphs()) != self._graphs:
            self._graphs = graphs
            now.marks.append(COMPILATION)
        self._cycles.append(now)
        self._done += 1
        self._kept_losses()
        if self._done <= CHECKED:
            self._note_weights()
        if self._done == 1:
            self._end_first_cycle()
        if self.orders.looks and self._done == 2:
            self._counter.begin()  # for one cycle, which is not timed
        elif self.orders.looks and self._done == 3:
            self._counter.end()
        self._budget -= 1
        if self._budget <= 0:
            self._pause()
        elif time.perf_counter() - self._told > _TELL_SECONDS:
            self._send({})  # it goes on
        self._began, self._faults = time.perf_counter(), page_faults()

    def _kept_losses(self) -> None:
        """Keep the losses as tensors: to read one would wait for a GPU."""
        self._cycles[-1].losses = self._losses  # type: ignore[assignment]
        self._losses = []

    def _pause(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            # The host runs ahead of the device: only a whole turn has a time.
            torch.cuda.synchronize()
            mean = (time.perf_counter() - self._resumed) / len(self._cycles)
            for cycle in self._cycles:
                cycle.seconds = mean
        for cycle in self._cycles:
            cycle.losses = [float(loss) for loss in cycle.losses]
        message: dict[str, Any] = {"cycles": [dataclasses.asdict(one) for one in self._cycles]}
        if self._checks:
            message["checks"], self._checks = self._checks, []
        message |= {"said": self._said, "hidden": self._hidden, "drew": self._drew}
        message |= {"threads": torch.get_num_threads(), "optimizers": len(self._optimizers)}
        if self.orders.looks:
            message |= {"order": self._order, "look": self._look()}
            message |= {"work": self._counter.work(), "items": self._counter.items()}
        self._send(message)
        self._cycles, self._said = [], []
        self._budget = self._receive()["cycles"]
        self._resumed = time.perf_counter()

    def _send(self, message: dict[str, Any]) -> None:
        self._told = time.perf_counter()
        self._connection.send_bytes(json.dumps(message).encode())

    def _receive(self) -> dict[str, Any]:
        try:
            order: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # the trial is over
        return order

    # ---- parity

    def _note_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        if len(self._checks) <= self._done:
            self._checks.append({"gradients": {}, "weights": {}, "buffers": {}, "half": False})
            self._steps_noted = 0
        check, self._steps_noted = self._checks[-1], self._steps_noted + 1
        names = names_of(self._roots.values())
        for place, weight in enumerate(weights(optimizer)):
            if weight.grad is not None:
                name = f"of {names.get(id(weight), str(place))} in step {self._steps_noted}"
                check["gradients"][name] = sample(weight.grad)
                self._half |= weight.dtype in (torch.bfloat16, torch.float16)
        check["half"] = self._half

    def _note_weights(self) -> None:
        names = names_of(self._roots.values())
        for optimizer in self._optimizers.values():
            for place, weight in enumerate(weights(optimizer)):
                self._checks[-1]["weights"][names.get(id(weight), str(place))] = sample(weight)
        for number, root in enumerate(self._roots.values()):
            for name, buffer in root.named_buffers():
                if buffer.is_floating_point() and buffer.numel():
                    self._checks[-1]["buffers"][f"{number}.{plain(name)}"] = sample(buffer)

    def _move(self) -> None:
        """Move weights by a rounding, to see how far the script carries one."""
        generator = torch.Generator().manual_seed(1)
        for optimizer in self._optimizers.values():
            for weight in weights(optimizer):
                if weight.is_floating_point():
                    size = _ROUNDING.get(weight.dtype, _ROUNDING_OF_HALF)
                    if self._checks[-1]["half"]:
                        size = _ROUNDING_OF_HALF
                    noise = torch.randn(weight.shape, generator=generator)
                    with torch.no_grad():
                        weight.mul_((1.0 + size * noise).to(weight.device, weight.dtype))
        self._note_weights()  # the next step begins here

    # ---- the accelerated form, and the look

    def _accelerates(self) -> bool:
        return self.orders.form == ACCELERATED and ALL not in self.orders.without

    def _switch_on(self) -> None:
        """Do what `import gallery_lib.plug` does, without its line, once."""
        if self._is_on or not self._accelerates():
            return
        self._is_on = True
        from gallery_lib import memory
        from gallery_lib.system import processes

        if ALLOCATOR in self.orders.without:
            memory.keep_large_blocks = lambda: "left out"
        told, processes.tell = processes.tell, lambda line: self._said.append(str(line))
        try:
            from gallery_lib import plug
        finally:
            processes.tell = told
        if OPTIMIZER in self.orders.without:
            plug._hook.remove()
        if self.orders.torchs_numbers:
            import torch._inductor.config as inductor

            inductor.fallback_random = True

    def _end_first_cycle(self) -> None:
        """Take the hooks of modules away; in the accelerated form, compile the models in place."""
        for hook in () if self.orders.looks else self._hooks:
            hook.remove()
        if self.orders.moved:
            self._move()
        if self._accelerates() and COMPILE not in self.orders.without:
            self._compile()

    def _compile(self) -> None:
        from gallery_lib.compiler import recompiles
        from gallery_lib.compiler.backend import compile_model
        from gallery_lib.compiler.calls import compiled_call
        from gallery_lib.config import Compiler

        passes = tuple(name for name in self.orders.without if name not in PARTS)
        for root in map(inside, self._roots.values()):
            if compiles_itself(root) or compiled_call(root) is not None:
                self._said.append(f"{type(root).__name__} is compiled by the script")
                continue
            for name, module in root.named_modules():
                if name in self.orders.eager:
                    module.forward = torch.compiler.disable(module.forward)
            device = next(root.parameters()).device
            options = Compiler(without=passes)
            self._said.append(f"{type(root).__name__}: {compile_model(root, options, device)}")
        recompiles.watch(self._said.append)

    def _look(self) -> dict[str, Any]:
        roots = list(self._roots.values())
        return {
            "models": [
                {
                    "name": type(inside(root)).__name__,
                    "weights": sum(p.numel() for p in root.parameters()),
                    "compiled": compiles_itself(root),
                    "device": str(next(root.parameters()).device),
                    "leaves": [
                        name
                        for name, module in inside(root).named_modules()
                        if name and not module._modules
                    ],
                }
                for root in roots
            ],
            "optimizers": [described(one) for one in self._optimizers.values()],
        }

    def _count_in(self, work: dict[Any, Any]) -> dict[Any, Any]:
        """Count what follows in `work`; return where it was counted before."""
        return self._counter.switch(work) if self._is_mine() else {}

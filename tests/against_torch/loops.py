"""Training loops of the kinds that people write. Each is written once, and both sides run it.

`run.ready(net)` stands where gradients have to be averaged. The oracle averages by hand there, and
the product does nothing. All other differences between the sides are in `Run`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from .case import Case
from .loaders import Replay, describe, unpack
from .models import CALLS, MODELS, loss, tensors


@dataclass
class Run:
    """What a loop trains with on one rank of one side, and the record that it fills."""

    case: Case
    rank: int
    world: int
    model: Any
    loader: Any
    validation: Any
    optimizer: Any
    scheduler: Any
    ready: Callable[[Any], None]
    accelerate_more: Callable[[nn.Module, Any], tuple[Any, Any]]
    record: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    early: Callable[[], Any] = contextlib.nullcontext
    """Context of a backward pass in which the optimizer's step is taken."""

    def batches(self, name: str = "train") -> Generator[tuple[Tensor, Tensor]]:
        """Yield x and target of each batch of one pass, and record what came."""
        loader = self.validation if name == "validation" else self.loader
        seen: list[list[int]] = []
        self.record["samples"].setdefault(name, []).append(seen)
        complete = self.record["complete"].setdefault(name, [])
        complete.append(False)
        with contextlib.suppress(TypeError, NotImplementedError):
            self.record["length"][name] = len(loader)
        endless = self.case.loader == "endless" and name != "validation"
        source = itertools.islice(loader, 4) if endless else loader
        for batch in source:
            index, x, y = unpack(batch)
            seen.append(index)
            self.record["batches"].append(describe(batch))
            # What ranks draw in forward must not depend on how the samples were divided.
            if self.world > 1:
                torch.manual_seed(10 * self.step + self.rank)
            yield x, y
        complete[-1] = True

    def epochs(self) -> Iterator[Generator[tuple[Tensor, Tensor]]]:
        """Yield the passes of the training, each as its batches."""
        for _ in range(self.case.epochs):
            yield self.batches()

    def all_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of all passes, one pass after the other."""
        return itertools.chain.from_iterable(self.epochs())

    def log(self, value: Tensor) -> None:
        """Record a step's loss and learning rates."""
        self.step += 1
        self.record["losses"].append(value.detach().clone())
        self.record["rates"].append([float(group["lr"]) for group in self.optimizer.param_groups])

    def update(self, value: Tensor) -> None:
        """Run the backward pass, the averaging, the optimizer's step and the scheduler's."""
        with self.early():
            value.backward()
        self.ready(self.model)
        self.optimizer.step()
        self.log(value)
        if self.scheduler is not None:
            self.scheduler.step()

    def look_alone(self, most: int | None = 1) -> None:
        """Take the first batches of a pass on rank 0 alone, of a loader that divides the data."""
        if self.rank == 0 and not isinstance(self.loader, Replay):
            list(itertools.islice(self.loader, most))

    def quiet(self) -> Any:
        """Return `no_sync()` of the model, or a context that does nothing where there is none."""
        return getattr(self.model, "no_sync", contextlib.nullcontext)()


def _value(run: Run, x: Tensor, y: Tensor) -> Tensor:
    return loss(run.model(x), y)


def _steps(
    run: Run,
    batches: Iterator[tuple[Tensor, Tensor]],
    value: Callable[[Run, Tensor, Tensor], Tensor] = _value,
    after: Callable[[int], None] = lambda number: None,
    set_to_none: bool = True,
) -> None:
    """Take a step down `value` with each batch; `after` is called with the step's number."""
    for number, (x, y) in enumerate(batches):
        run.optimizer.zero_grad(set_to_none=set_to_none)
        run.update(value(run, x, y))
        after(number)


def each_step(value: Callable[[Run, Tensor, Tensor], Tensor]) -> Callable[[Run], None]:
    """Make a loop of what happens in a step before its (last) backward pass.

    `value` returns the loss of that pass.
    """

    @functools.wraps(value)
    def loop(run: Run) -> None:
        _steps(run, run.all_batches(), value)

    return loop


def _ahead(batches: Iterator[Any], most: int) -> Iterator[Any]:
    """Yield the batches that a thread fetches, which is at most so many ahead."""
    ahead: queue.Queue[Any] = queue.Queue(most)

    def fetch() -> None:
        for batch in batches:
            ahead.put(batch)
        ahead.put(None)

    threading.Thread(target=fetch, daemon=True).start()
    yield from iter(ahead.get, None)


def simple(run: Run) -> None:
    _steps(run, run.all_batches())


def zeros_kept(run: Run) -> None:
    _steps(run, run.all_batches(), set_to_none=False)


def accumulate(run: Run) -> None:
    """Accumulate the gradients of two batches per step, the first without communication."""
    for epoch in run.epochs():
        run.optimizer.zero_grad()
        for number, (x, y) in enumerate(epoch):
            if number % 2 == 0:
                with run.quiet():
                    (loss(run.model(x), y) / 2).backward()
            else:
                run.update(loss(run.model(x), y) / 2)
                run.optimizer.zero_grad()


def clip(run: Run) -> None:
    for x, y in run.all_batches():
        run.optimizer.zero_grad()
        value = loss(run.model(x), y)
        value.backward()
        run.ready(run.model)
        norm = nn.utils.clip_grad_norm_(run.model.parameters(), 0.05, foreach=False)
        run.record["extra"].append(norm)
        run.optimizer.step()
        run.log(value)


def closure(run: Run) -> None:
    for x, y in run.all_batches():

        def again(x: Tensor = x, y: Tensor = y) -> Tensor:
            CALLS["closure"] += 1
            run.optimizer.zero_grad()
            value = loss(run.model(x), y)
            value.backward()
            run.ready(run.model)
            return value

        run.log(run.optimizer.step(again))


@each_step
def two_losses(run: Run, x: Tensor, y: Tensor) -> Tensor:
    """Run two forward and backward passes per step."""
    with run.quiet():
        loss(run.model(x), y).backward()
    return 0.5 * loss(run.model(x), -y)


@each_step
def two_backwards(run: Run, x: Tensor, y: Tensor) -> Tensor:
    """Run a backward pass of its own for each of two losses of one forward pass."""
    outputs = run.model(x)
    loss(outputs, y).backward(retain_graph=True)
    return loss(outputs, -y)


def gan(run: Run) -> None:
    """Train the model as a GAN's discriminator, in turn with a second network as its generator."""
    shape = MODELS[run.case.model].shape
    maker: Any = nn.Sequential(nn.Linear(4, math.prod(shape)), nn.Unflatten(1, shape))
    optimizer: Any = torch.optim.SGD(maker.parameters(), lr=0.05)
    maker, optimizer = run.accelerate_more(maker, optimizer)
    for x, _ in run.all_batches():
        noise = torch.linspace(-1, 1, 4 * len(x)).view(len(x), 4)
        real, fake = torch.ones(len(x)), torch.zeros(len(x))
        run.optimizer.zero_grad()
        both = torch.cat([x, maker(noise).detach()])
        run.update(loss(run.model(both), torch.cat([real, fake])))
        optimizer.zero_grad()
        value = loss(run.model(maker(noise)), real)
        value.backward()
        run.ready(maker)
        run.ready(run.model)  # whose gradients have the generator's part in them
        optimizer.step()
        run.record["extra"].append(value.detach())
    run.record["extra"] += [p.detach().clone() for p in maker.parameters()]


def ema_by_name(run: Run) -> None:
    """Average the weights by name, in copies of the trained model's parameters."""
    state = {name: p.detach().clone() for name, p in run.model.named_parameters()}

    @torch.no_grad()
    def average(number: int) -> None:
        for name, p in run.model.named_parameters():
            state[name].lerp_(p, 0.1)

    _steps(run, run.all_batches(), after=average)
    run.record["extra"] += list(state.values())


def averaged_model(run: Run) -> None:
    """Train with torch's AveragedModel, which copies what it is given, and evaluate the average."""
    averaged = AveragedModel(run.model)
    _steps(run, run.all_batches(), after=lambda number: averaged.update_parameters(run.model))
    run.record["extra"] += [p.detach().clone() for p in averaged.parameters()]
    _evaluate(run, averaged)


def _evaluate(run: Run, model: Any, name: str = "validation") -> None:
    """Record the losses of a pass; that over the training data is without any communication."""
    forward = getattr(model, "module", model) if name == "measured" else model
    model.eval()
    with torch.no_grad():
        for x, y in run.batches(name):
            run.record["extra"].append(loss(forward(x), y))
    model.train()


def evaluate(run: Run) -> None:
    for epoch in run.epochs():
        _steps(run, epoch)
        _evaluate(run, run.model)


def evaluate_in_between(run: Run) -> None:
    """Evaluate in the middle of an epoch, with the training loader's iterator open."""
    for epoch in run.epochs():
        _steps(run, epoch, after=lambda number: _evaluate(run, run.model) if number == 1 else None)


def measure(run: Run) -> None:
    """Measure the loss on the training data after each epoch, without any communication."""
    for epoch in run.epochs():
        _steps(run, epoch)
        _evaluate(run, run.model, "measured")


def rank_0_looks_first(run: Run) -> None:
    """Look at a batch on rank 0 alone before each epoch."""
    run.look_alone()
    for epoch in run.epochs():
        _steps(run, epoch)
        run.look_alone()


def freeze(run: Run) -> None:
    """Freeze the first trained parameter in every second epoch."""
    first = next((p for p in run.model.parameters() if p.requires_grad), None)
    for number, epoch in enumerate(run.epochs()):
        if first is not None:
            first.requires_grad_(number % 2 == 0)
        _steps(run, epoch)


def rate_by_hand(run: Run) -> None:
    for number, epoch in enumerate(run.epochs()):
        for group in run.optimizer.param_groups:
            group["lr"] *= 0.5**number
        _steps(run, epoch)


def early_break(run: Run) -> None:
    for epoch in run.epochs():
        _steps(run, itertools.islice(epoch, 2))
        epoch.close()


def peek(run: Run) -> None:
    """Look at the first batch before training, without updating anything."""
    for x, _ in run.batches():  # a loader may have none; while the model runs, its iterator is open
        with torch.no_grad():
            run.model(x)
        break
    simple(run)


def save_and_load(run: Run) -> None:
    """Save a checkpoint after the first epoch, train on, go back to it, and train on again."""
    kept: Any = None
    for epoch in run.epochs():
        _steps(run, epoch)
        if kept is None:
            kept = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))
    run.model.load_state_dict(kept[0])
    run.optimizer.load_state_dict(kept[1])
    _steps(run, run.batches())


def hooks_after(run: Run) -> None:
    """Register hooks on what accelerate() returned: the model, a parameter and the optimizer."""

    def count(name: str) -> Callable[..., None]:
        return lambda *_: CALLS.update([name])

    run.model.register_forward_hook(count("forward, after"))
    run.model.register_forward_pre_hook(count("pre, after"))
    run.optimizer.register_step_pre_hook(count("step pre, after"))
    run.optimizer.register_step_post_hook(count("step post, after"))
    first = next(p for p in run.model.parameters() if p.requires_grad)
    first.register_hook(count("gradient, after"))
    simple(run)


@each_step
def autocast(run: Run, x: Tensor, y: Tensor) -> Tensor:
    """Train with autocast to bfloat16, as users write it."""
    with torch.autocast("cpu", torch.bfloat16):
        return loss(run.model(x), y)


def group_added(run: Run) -> None:
    """Add a user's own parameter, beside the model, to the optimizer after the first epoch."""
    offset = nn.Parameter(torch.tensor(0.1))

    def value(run: Run, x: Tensor, y: Tensor) -> Tensor:
        return loss(run.model(x), y) + (offset * 0.5).square()

    for number, epoch in enumerate(run.epochs()):
        if number == 1:
            run.optimizer.add_param_group({"params": [offset], "lr": 0.01})
        _steps(run, epoch, value)
    run.record["extra"].append(offset.detach().clone())


@each_step
def two_calls(run: Run, x: Tensor, y: Tensor) -> Tensor:
    """Make two forward passes, then the backward pass of each."""
    first, second = loss(run.model(x), y), loss(run.model(x), -y)
    first.backward()
    return second


@each_step
def same_graph_twice(run: Run, x: Tensor, y: Tensor) -> Tensor:
    value = loss(run.model(x), y)
    value.backward(retain_graph=True)
    return value


@each_step
def output_by_output(run: Run, x: Tensor, y: Tensor) -> Tensor:
    """Run a backward pass for each output; each may reach parameters of its own."""
    *first, last = tensors(run.model(x))
    for output in first:
        loss(output, y).backward(retain_graph=True)
    return loss(last, y)


@each_step
def gradient_penalty(run: Run, x: Tensor, y: Tensor) -> Tensor:
    outputs = run.model(x.requires_grad_())
    (slope,) = torch.autograd.grad(loss(outputs, y), x, create_graph=True)
    return slope.square().sum() + loss(outputs, y)


def laid_out_anew(run: Run) -> None:
    """Change dtype and strides of the parameters after an epoch."""
    for number, epoch in enumerate(run.epochs()):
        if number == 1:
            run.optimizer.zero_grad()
            run.model.to(torch.float64)
            with torch.no_grad():
                for p in run.model.parameters():
                    p.set_(p.t().contiguous().t())
        _steps(run, ((x.to(next(run.model.parameters()).dtype), y) for x, y in epoch))


def rank_0_reads_a_pass(run: Run) -> None:
    for epoch in run.epochs():
        run.look_alone(None)
        _steps(run, epoch)


def fetched_by_thread(run: Run) -> None:
    for epoch in run.epochs():
        _steps(run, _ahead(epoch, 2))


def read_on(run: Run) -> None:
    """Train on batches of a thread that reads on over passes, on each rank as far as it can."""
    _steps(run, _ahead(run.all_batches(), 1 + 2 * run.rank))


@each_step
def rank_0_runs_more(run: Run, x: Tensor, y: Tensor) -> Tensor:
    """Make forward passes that lead to nothing: on rank 0 alone, and one that fails on rank 1."""
    if run.rank == 0:
        run.model(x)
    else:
        with contextlib.suppress(RuntimeError):
            run.model(x[:, :-1])
    return loss(run.model(x), y)


def frozen_for_a_moment(run: Run) -> None:
    for epoch in run.epochs():
        for p in run.model.parameters():
            p.requires_grad_(False)
            p.requires_grad_(True)
        _steps(run, epoch)


def _named(*loops: Callable[[Run], None]) -> dict[str, Callable[[Run], None]]:
    return {loop.__name__: loop for loop in loops}


LOOPS = _named(
    simple, zeros_kept, accumulate, clip, closure, two_losses, two_backwards, gan, ema_by_name,
    averaged_model, evaluate, evaluate_in_between, measure, rank_0_looks_first, freeze,
    rate_by_hand, early_break, peek, save_and_load, hooks_after, autocast, group_added,
)  # fmt: skip
RARE = _named(
    two_calls, same_graph_twice, output_by_output, gradient_penalty, laid_out_anew,
    rank_0_reads_a_pass, fetched_by_thread, read_on, rank_0_runs_more, frozen_for_a_moment,
)  # fmt: skip
"""Loops that are not drawn: not every model, configuration and way to call can take them."""

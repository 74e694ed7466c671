"""What users do with a DistributedDataParallel, the same while ways of averaging take turns."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gallery_lib.comm import tuner
from gallery_lib.comm.accelerate_ddp import accelerate_ddp, gradient_reducer
from gallery_lib.comm.reducer import GradientReducer
from gallery_lib.comm.tuner import Tuner
from gallery_lib.config import Comm
from on_ranks.models import DDP, batch, options_of, stack

WAYS = {
    "ddp": Comm(),
    "views": Comm(bucket_views=True),
    "streams": Comm(streams=2, bucket_mb=0.001),
}
STEPS = len(WAYS) * 4 * (2 + 2)
"""Number of steps of all turns."""


def tuned(model: DDP) -> Tuner:
    return Tuner(model, WAYS, rounds=4, block_steps=2, keep=False)


def _trained(
    change: Callable[[DDP], Any], accelerated: bool, steps: int = STEPS + 4
) -> dict[str, Any]:
    """Return the weights after training, the model, and the way that was chosen.

    `change` is given the model before the first step. It may return a function for each step.
    """
    model = DDP(stack([6, 9, 4]))
    if accelerated:
        turns = tuned(model)
    each_step = change(model) or (lambda _: None)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(steps):
        each_step(step)
        optimizer.zero_grad()
        model(batch(step, 6)).pow(2).sum().backward()
        optimizer.step()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    return {"weights": weights, "model": model, "chosen": turns.chosen if accelerated else "ddp"}


def _same(
    change: Callable[[DDP], Any],
    seen: Callable[[DDP], Any] = lambda model: None,
    steps: int = STEPS + 4,
) -> dict[str, Any]:
    plain, other = (_trained(change, accelerated, steps) for accelerated in (False, True))
    return {
        "exact": all(
            torch.equal(a, b) for a, b in zip(plain["weights"], other["weights"], strict=True)
        ),
        "seen": [seen(each["model"]) for each in (plain, other)],
        "chosen": other["chosen"],
    }


def hooks() -> dict[str, Any]:
    """Return the calls of every kind of hook, and attributes, after all turns.

    There is one value for plain DDP, and one for a model whose ways took turns.
    """

    def change(model: DDP) -> None:
        model.calls = {}  # type: ignore[assignment]

        def count(name: str) -> Callable[..., None]:
            def called(*_: Any) -> None:
                model.calls[name] = model.calls.get(name, 0) + 1

            return called

        forward = model.forward
        model.forward = lambda *inputs: (count("own forward")(), forward(*inputs))[1]  # type: ignore[method-assign]
        model.register_forward_pre_hook(count("pre"))
        model.register_forward_hook(count("forward"))
        model.register_full_backward_hook(count("backward"))
        model._register_state_dict_hook(count("state dict"))
        model._register_buffer_comm_hook(None, count("buffers"))
        model.mine = "kept"  # type: ignore[assignment]

    def seen(model: DDP) -> Any:
        model.state_dict()
        return (
            model.calls,
            model.mine,
            model.training,
            model.gradient_as_bucket_view,
            len(model._comm_hooks),
        )

    return _same(change, seen)


def own_hook(when: int, builtin: bool) -> dict[str, Any]:
    """Compare trainings with a user's communication hook, registered before step `when`.

    The hook halves what is sent.
    """

    def change(model: DDP) -> Any:
        def at(step: int) -> None:
            if step == when and builtin:
                model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
            elif step == when:
                model.register_comm_hook(None, default_hooks.fp16_compress_hook)

        if when < 0:
            at(when)
            return None
        return at

    return _same(change, lambda model: (len(model._comm_hooks), gradient_reducer(model) is None))


def copies() -> list[bool]:
    """Return whether deep copies and pickles train as those of plain DDP, and the model goes on.

    Copies are made before, during and after the turns.
    """
    exact = []
    models = [DDP(stack([6, 9, 4])), DDP(stack([6, 9, 4]))]
    tuned(models[1])
    for step in range(STEPS + 4):
        if step in (0, 1, STEPS // 2, STEPS - 1, STEPS + 2):
            for kind in (copy.deepcopy, _pickled):
                pair = [kind(model) for model in models]
                for each in pair:
                    for later in range(3):
                        each(batch(later, 6)).pow(2).sum().backward()
                exact.append(_equal(*pair, gradients=True))
                exact.append(
                    pair[1].gradient_as_bucket_view is False and gradient_reducer(pair[1]) is None
                )
        _step(models, step)
        exact.append(_equal(*models))
    return exact


def _pickled(model: DDP) -> DDP:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _equal(first: nn.Module, second: nn.Module, gradients: bool = False) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(*((a.grad, b.grad) if gradients else (a, b))) for a, b in pairs)


def _step(
    models: list[Any], step: int, loss: Callable[[nn.Module, int], Tensor] | None = None
) -> None:
    for model in models:
        model.zero_grad()
        (loss(model, step) if loss else model(batch(step, 6)).pow(2).sum()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.05 * parameter.grad


def habits(which: str) -> list[bool]:
    """Return whether weights are those of plain DDP after every step, with an unusual habit.

    Ways of averaging take turns meanwhile.
    """
    models = [DDP(stack([6, 9, 4])), DDP(stack([6, 9, 4]))]
    turns = tuned(models[1])
    run: list[Any] = [
        torch.compile(model, backend="eager") if which == "compiled" else model for model in models
    ]
    exact, rank = [], dist.get_rank()
    held = [
        torch.nn.parallel.DistributedDataParallel.__getattribute__(model, "reducer")
        for model in models
    ]

    def loss(model: nn.Module, step: int) -> Tensor:
        if which == "two forwards":
            return model(batch(step, 6)).pow(2).sum() + model(batch(100 + step, 6)).sum()
        if which == "accumulation":
            with model.no_sync():
                model(batch(100 + step, 6)).pow(2).sum().backward()
        if which == "one rank looks at more, and all meet" and step > 1 and step % 4 > 0:
            model.eval()
            if rank == 0:
                model(batch(step, 6))
            dist.barrier()
            model.train()
        if which == "evaluation":
            model.eval()
            with torch.no_grad():
                model(batch(step, 6))
            model.train()
        if which == "one rank looks at more" and step % 3 == rank:
            model(batch(step, 6))
        if which == "a step fails" and step % 3 == 0:
            with contextlib.suppress(ZeroDivisionError):
                model(batch(step, 6))
                raise ZeroDivisionError
        if which == "a forward pass fails on one rank" and step % 3 == rank:
            with contextlib.suppress(RuntimeError):
                model(torch.ones(2, 3))
        return model(batch(step, 6)).pow(2).sum()

    for step in range(STEPS + 4):
        if which == "frozen" and step % 7 == 3:
            # Plain DDP does not hear of this; it averages again once the weight is unfrozen.
            for model in models:
                model.module[0].weight.requires_grad_(False)
                model.module[0].weight.requires_grad_(True)
        if which == "joined" and step % 7 == 3:
            for model in models:
                with model.join():
                    _step([model], step)
        _step(run, step, loss)
        exact.append(_equal(*models))
    del held
    # After join() DDP takes itself for joined, and turns wait.
    return [
        *exact,
        turns.chosen in WAYS or which == "joined",
    ]


def a_rank_that_does_not_come() -> dict[str, Any]:
    """Return whether training stays exact when rank 0 waits in vain for the others to change turns.

    Rank 0 looks at more in training mode, and then all ranks meet. Tuning ends there.
    """
    models = [DDP(stack([6, 9, 4])), DDP(stack([6, 9, 4]))]
    exact = []
    with mock.patch.object(tuner, "_MEETING_SECONDS", 1.0):
        turns = tuned(models[1])
        for step in range(12):
            _step(models, step)
            for model in models:
                # After the first step plain DDP would hang as well.
                if dist.get_rank() == 0 and step > 0:
                    model(batch(step, 6))
                dist.barrier()
            exact.append(_equal(*models))
    return {"exact": all(exact), "chosen": turns.chosen}


def frozen_at_a_rebuild() -> list[bool]:
    """Return whether a layer's gradients are plain DDP's when it is frozen while a way begins.

    The layer is unfrozen later, and plain DDP goes on to average it.
    """
    models = [DDP(stack([6, 9, 4])), DDP(stack([6, 9, 4]))]
    exact = []
    for values in ({"streams": 2}, {}, {"bucket_views": True}):
        for model in models:
            model.module[0].requires_grad_(False)
        accelerate_ddp(models[1], options_of(values))
        exact.append(not models[1].module[0].weight.requires_grad)
        for model in models:
            model.module[0].requires_grad_(True)
        for step in range(3):
            _step(models, step)
            exact.append(_equal(*models))
    accelerate_ddp(models[1], Comm())
    return exact


def held_reducer() -> bool:
    """Return whether gradients are right where the user holds the reducer that was replaced."""
    models = [DDP(stack([6, 9, 4])), DDP(stack([6, 9, 4]))]
    held = [models[1].reducer]
    for values in ({"bucket_views": True}, {"streams": 2}, {}):
        accelerate_ddp(models[1], options_of(values))
        held.append(models[1].reducer)
        for step in range(3):
            _step(models, step)
    return _equal(*models)


def deleted() -> list[int]:
    """Return the threads before, with, and after three models that have two streams each.

    The three are deleted, and a fourth goes on.
    """
    last = accelerate_ddp(DDP(stack([6, 9, 4])), Comm(streams=2))
    counts = [threading.active_count()]
    models = [accelerate_ddp(DDP(stack([6, 9, 4])), Comm(streams=2)) for _ in range(3)]
    _step([*models, last], 0)
    counts.append(threading.active_count())
    del models
    gc.collect()
    threading.Event().wait(2.5)
    counts.append(threading.active_count())
    _step([last], 1)
    accelerate_ddp(last, Comm())
    return counts


def replaced() -> list[int]:
    """Return how many of our communication hooks are alive after many changes of way.

    The second value is for the model back at DDP's own way.
    """
    gc.collect()
    before = _alive()
    model, counts = DDP(stack([6, 9, 4])), []
    for number in range(4):
        accelerate_ddp(model, Comm(streams=2, bucket_views=number % 2 == 0))
        for step in range(2):
            _step([model], step)
    counts.append(_alive() - before)
    accelerate_ddp(model, Comm())
    _step([model], 0)
    return [*counts, _alive() - before]


def _alive() -> int:
    gc.collect()
    return sum(isinstance(thing, GradientReducer) for thing in gc.get_objects())


class _Odd(nn.Module):
    """Model with parameters of every type and form that DDP takes."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
            return nn.Parameter(
                torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            )

        self.complex = weight(6, 8, dtype=torch.complex64)
        self.complex_turned = nn.Parameter(weight(7, 5, dtype=torch.complex64).data.t())
        self.doubles, self.double_bias = (
            weight(40, 30, dtype=torch.float64),
            weight(30, dtype=torch.float64),
        )
        self.halves, self.brain = (
            weight(9, 7, dtype=torch.float16),
            weight(9, 7, dtype=torch.bfloat16),
        )
        self.nothing, self.nothing_double = weight(0, 3), weight(0, dtype=torch.float64)
        self.turned = nn.Parameter(weight(5, 4, 3, 3).data.to(memory_format=torch.channels_last))
        self.single, self.shared = weight(), weight(12, 10)
        self.again = self.shared
        self.table = nn.Embedding(10, 4, sparse=sparse)
        with torch.no_grad():
            self.table.weight.copy_(weight(10, 4))
        self.register_buffer("count", torch.arange(3))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, step: int) -> Tensor:
        rank, total = dist.get_rank(), torch.zeros((), dtype=torch.float64)
        for number, parameter in enumerate(self.parameters()):
            if parameter is self.table.weight:
                continue
            generator = torch.Generator().manual_seed(1000 * step + 100 * rank + number)
            factor = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(
                parameter.dtype
            )
            scaled = parameter * factor
            total = (
                total
                + (
                    torch.view_as_real(scaled).pow(2) if scaled.is_complex() else scaled.double()
                ).sum()
            )
        return total + self.table(torch.tensor([rank, step % 10, 3, 3])).double().sum()


def odd_parameters(values: dict[str, Any], sparse: bool) -> dict[str, float]:
    """Return how far each mean gradient is from plain DDP's, over a few steps, by parameter.

    The unit is the largest gradient.
    """
    models = [DDP(_Odd(sparse)), accelerate_ddp(DDP(_Odd(sparse)), options_of(values))]
    apart: dict[str, float] = {}
    for step in range(4):
        for model in models:
            model.zero_grad()
            model(step).backward()
        for (name, first), second in zip(
            models[0].module.named_parameters(), models[1].parameters(), strict=True
        ):
            a, b = (
                each.grad.to_dense() if each.grad.is_sparse else each.grad
                for each in (first, second)
            )
            assert a.dtype == b.dtype and first.grad.is_sparse == second.grad.is_sparse
            if a.numel():
                apart[name] = max(
                    apart.get(name, 0.0), ((a - b).abs().max() / a.abs().max()).item()
                )
    accelerate_ddp(models[1], Comm())
    return apart


def large_gradients(values: dict[str, Any]) -> bool:
    """Return whether gradients arrive as in plain DDP when only their sum overflows.

    Their mean does not overflow.
    """
    models = [DDP(stack([6, 4])), accelerate_ddp(DDP(stack([6, 4])), options_of(values))]
    for model in models:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: torch.full_like(gradient, 3e38))
        model(batch(0, 6)).sum().backward()
    accelerate_ddp(models[1], Comm())
    return _equal(*models, gradients=True) and bool(
        models[0].module[0].weight.grad.isfinite().all()
    )


def sparse_while_tuning() -> list[bool]:
    """Return whether weights of a model with sparse gradients are plain DDP's after each step."""
    models = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        models.append(DDP(nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))))
        if accelerated:
            tuned(models[-1])
    exact = []
    for step in range(STEPS + 4):
        _step(
            models,
            step,
            lambda model, step: model(torch.tensor([dist.get_rank(), step % 10])).sum(),
        )
        exact.append(_equal(*models))
    return exact


def sparse_not_finite(rank: int) -> str:
    model = accelerate_ddp(DDP(nn.Embedding(10, 4, sparse=True)), Comm(non_finite="stop"))
    factor = torch.tensor(torch.inf if dist.get_rank() == rank else 1.0)
    try:
        (model(torch.tensor([dist.get_rank()])) * factor).sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def different_options() -> str:
    model = DDP(stack([6, 4]))
    try:
        accelerate_ddp(model, Comm(streams=1 + dist.get_rank()))
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    _step([model], 0)  # the model is as before
    return message


def unused_by_option(values: dict[str, Any]) -> list[bool]:
    """Return whether the option for unused parameters works as DDP's argument does.

    Each rank uses another of two branches. With the option off again, plain DDP's error comes.
    """

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return (self.first if dist.get_rank() == 0 else self.second)(x)

    torch.manual_seed(0)
    two = Two()
    models = [DDP(copy.deepcopy(two), find_unused_parameters=True), DDP(two)]
    accelerate_ddp(models[1], options_of({**values, "find_unused_parameters": True}))
    exact = []
    for step in range(3):
        _step(models, step)
        exact.append(_equal(*models))
    accelerate_ddp(models[1], Comm())
    try:
        for step in range(2):
            _step(models[1:], step)
    except RuntimeError as error:
        exact.append("find_unused_parameters" in str(error))
    return exact


def made_otherwise(how: str) -> list[bool]:
    """Return whether weights are those of plain DDP after each step, for models in rarer forms.

    The models are made or changed in the way `how`.
    """
    models: list[DDP] = []
    for accelerated in (False, True):
        net, arguments = stack([6, 9, 4]), {}
        if how == "ignored":
            DDP._set_params_and_buffers_to_ignore_for_model(net, ["2.weight"])
        elif how in ("static_graph", "find_unused_parameters", "gradient_as_bucket_view"):
            arguments = {how: True}
        elif how == "buckets":
            arguments = {"bucket_cap_mb": 0.0002}
        models.append(DDP(net, **arguments))
        if accelerated:
            tuned(models[-1])
        if how == "static graph later":
            models[-1]._set_static_graph()
        elif how == "fused optimizer":
            models[-1]._register_fused_optim(torch.optim.SGD, 0.05)
    exact = []
    for step in range(STEPS + 4):
        if how == "fused optimizer":
            for model in models:
                model(batch(step, 6)).pow(2).sum().backward()
        else:
            _step(models, step)
        exact.append(_equal(*models))
    mine = models[1]
    same = ("static_graph", "find_unused_parameters", "gradient_as_bucket_view", "bucket_bytes_cap")
    return [
        *exact,
        all(
            getattr(mine, name) == getattr(models[0], name)
            for name in same
            if name != "bucket_bytes_cap" or how == "buckets"
        ),
    ]

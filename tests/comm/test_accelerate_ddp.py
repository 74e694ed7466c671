"""Gradient averaging other than DDP's, on real processes that pretend to be on several hosts."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from against_torch.case import Case
from against_torch.run import ROUNDED, SAME, run
from ranks import Ranks, on_ranks
from small_models import DDP, apart, loss, small, stack, train_step
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gallery_lib.comm import reducer
from gallery_lib.comm.accelerate_ddp import (
    accelerate_ddp,
    comm_state_dict,
    load_comm_state_dict,
    step_in_backward,
)
from gallery_lib.comm.ddp import distribute
from gallery_lib.comm.process_group import all_ranks, averaging_groups, find_topology
from gallery_lib.comm.tuner import Tuner
from gallery_lib.config import Comm
from gallery_lib.errors import InputError, RunFailed

CASE = Case(
    model="wide",
    comm="together",
    launch="four_group_before",
    loader="distributed_sampler",
    call="accelerate_ddp",
    batch_size=2,
    samples=16,
)


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(4, marks=pytest.mark.thorough)],
    ids="four processes on {} hosts".format,
)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    if request.param == 2:
        yield request.getfixturevalue("two_by_two")
        return
    with Ranks(4, request.param) as running:
        yield running


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "change",
    [
        *({"comm": comm} for comm in ("small_buckets", "bucket_views", "streams", "hierarchical")),
        *({"model": model} for model in ("double", "bfloat16", "convolution")),
        *({"loop": loop} for loop in ("accumulate", "two_losses")),
        {"model": "unused", "call": "find_unused"},
    ],
    ids=str,
)
def test_lossless_ways_differ_from_plain_pytorch_by_the_order_of_additions_only(
    ranks: Ranks, change: dict
) -> None:
    """And all ranks have the same bits."""
    verdict = run(dataclasses.replace(CASE, **change), ranks)
    assert verdict.outcome in (SAME, ROUNDED), verdict.lines


class Odd(nn.Module):
    """Model with parameters of every type and form that DDP takes."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
            values = torch.randn(shape, generator=generator, dtype=torch.float64)
            return nn.Parameter(values.to(dtype))

        self.complex = weight(6, 8, dtype=torch.complex64)
        self.complex_turned = nn.Parameter(weight(7, 5, dtype=torch.complex64).data.t())
        self.doubles = weight(40, 30, dtype=torch.float64)
        self.double_bias = weight(30, dtype=torch.float64)
        self.halves = weight(9, 7, dtype=torch.float16)
        self.brain = weight(9, 7, dtype=torch.bfloat16)
        self.nothing, self.nothing_double = weight(0, 3), weight(0, dtype=torch.float64)
        self.turned = nn.Parameter(weight(5, 4, 3, 3).data.to(memory_format=torch.channels_last))
        self.single, self.shared = weight(), weight(12, 10)
        self.again = self.shared
        self.large = weight(60, 90)  # of several groups that int8 scales alone

    def forward(self, step: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for number, parameter in enumerate(self.parameters()):
            seed = 1000 * step + 100 * dist.get_rank() + number
            generator = torch.Generator().manual_seed(seed)
            factor = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scaled = parameter * factor.to(parameter.dtype)
            real = torch.view_as_real(scaled).pow(2) if scaled.is_complex() else scaled.double()
            total = total + real.sum()
        return total


@pytest.mark.parametrize(
    ("wire", "most"),
    [
        ({"wire": "bf16"}, 2**-6),
        ({"wire": "fp16"}, 2**-8),
        ({"wire": "int8"}, 4 / 127),
        ({"wire": "int8", "hierarchical": True}, 4 / 127),
        ({"wire": "int8", "streams": 2, "bucket_mb": 0.001}, 4 / 127),
    ],
    ids=str,
)
@on_ranks("ranks")
def test_wire_formats_round_every_type_of_parameter_as_much_as_they_may(
    wire: dict, most: float
) -> None:
    """Each term is rounded once, and so is the sum; terms are about twice as large as the mean."""
    plain, ours = DDP(Odd()), accelerate_ddp(DDP(Odd()), Comm(**wire))
    for step in range(4):
        for model in (plain, ours):
            model.zero_grad()
            model(step).backward()
        pairs = zip(plain.module.named_parameters(), ours.parameters(), strict=True)
        for (name, exact), rounded in pairs:
            assert exact.grad.dtype == rounded.grad.dtype
            assert all(rounded.grad.equal(other) for other in all_ranks(rounded.grad)), name
            if exact.numel():
                error = (exact.grad - rounded.grad).abs().max() / exact.grad.abs().max()
                # int8 rounds a number alone in units of its neighbours' scale.
                assert error <= (0.5 if name == "single" else most), name
                assert name != "doubles" or error > 1e-7


@pytest.mark.parametrize(
    ("made_with", "storages"),
    [({}, [2, 1, 2]), ({"gradient_as_bucket_view": True}, [1, 1, 1])],
    ids=str,
)
@on_ranks("two_by_two")
def test_a_way_leaves_nothing_of_itself_to_the_next(made_with: dict, storages: list) -> None:
    """DDP's own way is the baseline of the tuner and the benchmarks.

    The gradients lie in one storage where they are views of a bucket.
    """
    model = DDP(stack([8, 8]), **made_with)
    for values, expected in zip(({}, {"bucket_views": True}, {}), storages, strict=True):
        model.zero_grad()
        accelerate_ddp(model, Comm(**values))
        for step in range(3):
            model.zero_grad()
            loss(model, step, 8).backward()
        places = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
        assert len(places) == expected


@pytest.mark.parametrize(("megabytes", "layers"), [(1, [4]), (0.01, [1, 1, 1, 1])])
@on_ranks("two_by_two")
def test_buckets_are_as_large_as_is_asked_for(megabytes: float, layers: list[int]) -> None:
    model = accelerate_ddp(DDP(stack([64] * 5)), Comm(bucket_mb=megabytes))
    seen: list[int] = []

    def take(state, bucket):  # torch looks at annotations
        seen.append(bucket.buffer().nbytes)
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook(None, take)
    for step in range(3):  # in the first DDP has buckets of its own
        seen.clear()
        loss(model, step, 64).backward()
    assert seen == [number * 4 * (64 * 64 + 64) for number in layers]


@pytest.fixture(params=[1, 2])
def pair(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(2, hosts=request.param) as ranks:
        yield ranks


@on_ranks("pair")
def test_between_hosts_the_first_gradients_of_a_compiled_model_need_not_wait_for_the_last() -> None:
    """Three layers of 1.4 MB: the last fills DDP's first bucket (1 MiB), and the graph is cut."""
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model, plain = stack([600] * 4), DDP(stack([600] * 4))
    model.compile(backend=backend)
    averaged = distribute(model, torch.device("cpu"), Comm())
    for step in range(3):
        for each in (averaged, plain):
            each.zero_grad()
            loss(each, step, 600).backward()
        assert apart(model, plain, gradients=True) < 1e-6
    assert len(graphs) == len(find_topology().hosts)


@pytest.mark.parametrize("failing", [None, 1])
@on_ranks("two_by_two")
def test_memory_shared_within_a_host_has_no_name_that_a_kill_could_leave_behind(
    failing: int | None,
) -> None:
    names, open_file, rank = [], torch.from_file, dist.get_rank()

    def opened(path: str, **options: Any) -> Tensor:
        names.append(Path(path).stat().st_nlink)
        if rank == failing:
            raise RuntimeError("made to fail")
        return open_file(path, **options)

    local, _ = averaging_groups(find_topology(), True)
    slots, host = reducer.SharedSlots(local), [rank // 2 * 2, rank // 2 * 2 + 1]
    with mock.patch.object(torch, "from_file", opened):
        if failing in host:  # all of its host say so at once
            cause = "made to fail" if rank == failing else ""
            with pytest.raises(InputError, match=f"hierarchical communication needs.*{cause}"):
                slots.of(3, torch.float32)
            return
        for size in (3, 300):
            rows = slots.of(size, torch.float32)
            rows[dist.get_rank(local)].fill_(rank)
            slots.meet()
            assert rows[:2].mean(1).tolist() == host
            slots.meet()
    assert names == [0, 0]


@pytest.mark.parametrize("keep", [True, False], ids=["with it", "without"])
@pytest.mark.parametrize(
    "values", [{"wire": "int8"}, {"wire": "int8", "hierarchical": True}], ids=str
)
@on_ranks("two_by_two")
def test_training_goes_on_from_a_checkpoint_with_what_error_feedback_keeps(
    values: dict, keep: bool
) -> None:
    def train(model: nn.Module, *steps: int) -> None:
        for step in steps:
            train_step([model], step, 64, rate=0.001)

    model, other = (accelerate_ddp(DDP(stack([64, 40, 30])), Comm(**values)) for _ in range(2))
    train(model, 0, 1, 2, 3)
    weights, kept = copy.deepcopy((model.module.state_dict(), comm_state_dict(model)))
    train(model, 4, 5, 6)
    train(other, 0)  # DDP orders its buckets at the first step
    other.module.load_state_dict(weights)
    if keep:
        load_comm_state_dict(other, kept)
    train(other, 4, 5, 6)
    assert (apart(model, other) == 0) is keep


class Own(torch.optim.SGD):
    pass


LINEAR = functools.partial(nn.Linear, 4, 3)
SPARSE = functools.partial(nn.Embedding, 4, 3, sparse=True)
COMPLEX = functools.partial(nn.Linear, 4, 3, dtype=torch.complex64)
SGD = torch.optim.SGD


@pytest.mark.parametrize(
    ("values", "build", "made_with", "optimizer", "message"),
    [
        ({"streams": 2}, SPARSE, {}, None, "it has sparse gradients"),
        ({"wire": "int4"}, LINEAR, {}, None, "wire='int4' must be"),
        ({}, LINEAR, {}, torch.optim.LBFGS, "a step of LBFGS cannot be divided"),
        ({}, LINEAR, {}, Own, "a step of Own cannot be divided"),
        ({}, LINEAR, {"find_unused_parameters": True}, SGD, "together with find_unused_parameters"),
        ({}, LINEAR, {"static_graph": True}, SGD, "together with static_graph"),
        ({}, COMPLEX, {}, SGD, "of complex parameters, and of those that are not contiguous"),
    ],
)
@on_ranks("two_by_two")
def test_what_cannot_be_is_refused(
    values: dict, build: Any, made_with: dict, optimizer: Any, message: str
) -> None:
    model = DDP(build(), **made_with)
    given = optimizer and optimizer(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=f"(?i){message}"):
        accelerate_ddp(model, Comm(**values), optimizer=given)


@on_ranks("two_by_two")
def test_a_plain_module_a_users_hook_and_options_that_differ_by_rank_are_refused() -> None:
    with pytest.raises(InputError, match="takes a DistributedDataParallel, and got a Sequential"):
        accelerate_ddp(stack([4, 3]), Comm())
    model = small()
    with pytest.raises(InputError, match="streams=1 on rank 0, and streams=2 on rank 1"):
        accelerate_ddp(model, Comm(streams=1 + dist.get_rank()))
    train_step([model], 0)  # the model is as before
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(InputError, match="it has a communication hook of its own"):
        accelerate_ddp(model, Comm(streams=2))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("values", [{"bucket_views": True, "bucket_mb": 0.001}, {}], ids=str)
@on_ranks("two_by_two")
def test_ranks_may_have_different_numbers_of_batches(values: dict, early: bool) -> None:
    """DDP's `join` lets the ranks that are done stand by."""
    plain, ours = small(), small()
    for model in (plain, ours):
        optimizer = SGD(model.parameters(), lr=0.01)
        in_backward = early and model is ours
        if model is ours:
            accelerate_ddp(model, Comm(**values), optimizer=optimizer if early else None)
        with model.join():
            for step in range(2 + dist.get_rank()):
                optimizer.zero_grad()
                value = loss(model, step)
                with step_in_backward(model) if in_backward else contextlib.nullcontext():
                    value.backward()
                optimizer.step()
    assert apart(plain, ours) < 1e-6


class Slow(reducer.Channel):
    """Channel that takes its time where there are 3 streams."""

    def __init__(self, options: Comm, *others: Any) -> None:
        self.slow = options.streams == 3
        super().__init__(options, *others)

    def average_(self, *arguments: Any) -> None:
        if self.slow:
            time.sleep(0.1)
        super().average_(*arguments)


SLOW = Comm(streams=3)


@pytest.mark.parametrize(
    ("ways", "steps", "choice"),
    [
        ({"ddp": Comm(), "slow": SLOW}, 90, "ddp"),
        ({"ddp": SLOW, "slow": SLOW, "good": Comm(streams=2)}, 140, "good"),
    ],
    ids=["slow", "good"],
)
@on_ranks("two_by_two")
def test_the_tuner_takes_what_is_faster_on_all_ranks_and_training_is_not_disturbed(
    ways: dict[str, Comm], steps: int, choice: str
) -> None:
    with mock.patch.object(reducer, "Channel", Slow):
        plain, ours = small(), small()
        tuner = Tuner(ours, ways, rounds=6, block_steps=4)
        for step in range(steps):
            train_step([ours, plain], step, rate=0.01)
    assert tuner.choice == choice and apart(plain, ours) < 1e-5


# --------------------------------------------------------------------------------------------------
# Optimizer-in-backward: steps in parts are the whole step, or are refused.
EARLY = Case(
    launch="two_group_before", loader="distributed_sampler", call="early", batch_size=2, samples=16
)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "sgd_groups", "loop": "accumulate", "scheduler": "step"},
        {"optimizer": "adamw_groups", "comm": "together"},
        {"optimizer": "radam", "comm": "streams", "loop": "rate_by_hand"},
        {"optimizer": "momentum", "loop": "gan"},
        {"model": "several_dtypes", "loop": "save_and_load"},
        *(
            {"call": "early_one_pass", "optimizer": name}
            for name in ("adam", "amsgrad", "adamw", "momentum", "rmsprop", "radam")
        ),
    ],
    ids=str,
)
def test_weights_are_those_of_a_step_at_the_end(two: Ranks, change: dict) -> None:
    verdict = run(dataclasses.replace(EARLY, **change), two)
    assert verdict.outcome in (SAME, ROUNDED)[: 1 + ("call" in change)], verdict.lines


@on_ranks("two")
def test_weights_move_within_the_block_and_no_longer_with_other_options() -> None:
    """Each step is a backward pass, in the block or not, and a step of the optimizer."""
    model, optimizer = in_buckets()
    for block, expected in ((step_in_backward(model), [True, False]), (None, [False, True])):
        optimizer.zero_grad()
        value = loss(model, 0)
        moved = []
        for change in (value.backward, optimizer.step):
            before = [parameter.detach().clone() for parameter in model.parameters()]
            with (block if not moved else None) or contextlib.nullcontext():
                change()
            pairs = zip(before, model.parameters(), strict=True)
            moved.append(not any(torch.equal(*pair) for pair in pairs))
        assert moved == expected
        accelerate_ddp(model, Comm())  # takes the optimizer back, too


def in_buckets() -> tuple[DDP, torch.optim.Optimizer]:
    """Return a model of several buckets, and the optimizer that steps in its backward pass."""
    model = DDP(stack([6, 90, 40]))
    optimizer = SGD(model.parameters(), 0.1)
    accelerate_ddp(model, Comm(bucket_mb=0.001), optimizer=optimizer)
    return model, optimizer


NONE_RAN = "no backward pass that averages this model's gradients"


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("no optimizer", InputError, r"step_in_backward\(\) needs to know the optimizer"),
        ("other optimizer", InputError, "none of the optimizer's parameters is one of the model's"),
        ("clipping", RunFailed, r"a gradient was changed after step_in_backward\(\)"),
        ("two passes", RunFailed, r"two backward passes ran within step_in_backward\(\)"),
        ("no backward pass", InputError, NONE_RAN),
        ("no_sync", InputError, NONE_RAN),
        ("nested", InputError, r"step_in_backward\(\) cannot stand within another such block"),
    ],
)
@on_ranks("two")
def test_a_step_that_is_not_the_optimizers_is_refused(
    what: str, error: type[Exception], message: str
) -> None:
    model = small()
    optimizer = SGD(model.parameters(), 0.1)
    with pytest.raises(error, match=message):
        if what == "other optimizer":
            accelerate_ddp(model, Comm(), optimizer=SGD([nn.Parameter(torch.ones(2))], 0.1))
        if what != "no optimizer":
            accelerate_ddp(model, Comm(), optimizer=optimizer)
        with model.no_sync() if what == "no_sync" else contextlib.nullcontext():
            value = loss(model, 0)
        with step_in_backward(model):
            if what in ("clipping", "no_sync", "two passes"):
                value.backward()
            if what == "two passes":
                loss(model, 1).backward()
            if what == "nested":
                with step_in_backward(model):
                    pass
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    accelerate_ddp(model, Comm())  # the training can go on without
    optimizer.zero_grad()
    loss(model, 0).backward()
    optimizer.step()


@on_ranks("two")
def test_a_backward_pass_that_fails_when_some_parameters_had_their_step_says_so() -> None:
    model, _ = in_buckets()

    def fail(*_: Any) -> None:
        time.sleep(1)  # until the other layer's parameters have had their step
        raise ZeroDivisionError

    def step(number: int) -> None:
        value = loss(model, number)
        with step_in_backward(model):
            value.backward()

    step(0)  # after which DDP orders its buckets
    model.module[1].register_full_backward_hook(fail)
    with pytest.raises(RunFailed, match="these weights are between two steps"):
        step(1)

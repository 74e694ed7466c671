"""User code works the same under every way of averaging, and with what accelerate() returns.

There are two ranks, where means are exact.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import importlib
import io
import threading
import time
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from against_torch.case import Case
from against_torch.product import TURN_STEPS, TURNS
from against_torch.run import FAILED, REFUSED, SAME, run
from ranks import Ranks, on_ranks
from small_models import DDP, apart, batch, loss, small, stack, train_step
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from gallery_lib import Config, accelerate
from gallery_lib.comm.accelerate_ddp import accelerate_ddp, gradient_reducer
from gallery_lib.comm.ddp import distributed
from gallery_lib.comm.process_group import all_ranks
from gallery_lib.comm.reducer import GradientReducer
from gallery_lib.comm.tuner import Tuner
from gallery_lib.config import Comm
from gallery_lib.errors import InputError, RunFailed

pytestmark = pytest.mark.slow

USERS = Case(
    launch="two_group_before", loader="distributed_sampler", call="accelerate_ddp", batch_size=2
)
IN_TURNS = dataclasses.replace(USERS, comm="turns", samples=16, epochs=17)


@pytest.mark.parametrize(
    "change",
    [
        *({"loop": loop} for loop in ("accumulate", "two_losses", "evaluate", "hooks_after")),
        *({"loop": loop} for loop in ("rank_0_runs_more", "frozen_for_a_moment", "save_and_load")),
        *({"model": model} for model in ("hooks", "compiled_before", "buffers", "shared")),
        *({"call": call} for call in ("static_graph", "find_unused", "own_views", "own_buckets")),
    ],
    ids=str,
)
def test_trainings_are_those_of_plain_ddp_while_ways_take_turns(two: Ranks, change: dict) -> None:
    verdict = run(dataclasses.replace(IN_TURNS, **change), two)
    assert verdict.outcome == SAME, verdict.lines


@pytest.mark.parametrize("comm", ["bucket_views", "streams", "together"])
@pytest.mark.parametrize(
    "model",
    ["complex", "double", "several_dtypes", "bfloat16", "zero_size", "wide", "scalar", "shared",
     "tied", "transposed_weight", "channels_last", "frozen", "sparse"],
)  # fmt: skip
def test_lossless_ways_are_exact_for_every_type_and_form_of_parameter(
    two: Ranks, model: str, comm: str
) -> None:
    verdict = run(dataclasses.replace(USERS, model=model, comm=comm), two)
    sparse = model == "sparse" and comm != "bucket_views"
    assert verdict.outcome == (REFUSED if sparse else SAME), verdict.lines


@pytest.mark.parametrize(("when", "refused"), [(0, False), (5, False), (10, True)])
@on_ranks("two")
def test_a_communication_hook_of_the_users_wins_until_another_way_has_one(
    when: int, refused: bool
) -> None:
    """Ways take turns, of which the first is DDP's own. The hook halves what is sent."""
    plain, ours = small(), small()
    turns = Tuner(ours, TURNS, rounds=4, block_steps=2)
    for step in range(TURN_STEPS + 4):
        if step == when:
            plain.register_comm_hook(None, default_hooks.fp16_compress_hook)
            error = pytest.raises(RuntimeError, match="can only be called once")
            with error if refused else contextlib.nullcontext():
                ours.register_comm_hook(None, default_hooks.fp16_compress_hook)
        train_step([plain, ours], step)
    assert turns.choice == "ddp"
    assert refused or apart(plain, ours) == 0


def pickled(model: DDP) -> DDP:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@on_ranks("two")
def test_copies_and_pickles_are_those_of_plain_ddp() -> None:
    """They are made before, during and after the turns of ways, and the model goes on."""
    plain, ours = small(), small()
    Tuner(ours, TURNS, rounds=4, block_steps=2)
    for step in range(TURN_STEPS + 4):
        copying = step in (0, 1, TURN_STEPS // 2, TURN_STEPS - 1, TURN_STEPS + 2)
        for kind in (copy.deepcopy, pickled) if copying else ():
            copies = [kind(model) for model in (plain, ours)]
            for model in copies:
                for later in range(3):
                    loss(model, later).backward()
            assert apart(*copies, gradients=True) == 0
            assert gradient_reducer(copies[1]) is None
            assert copies[1].gradient_as_bucket_view is False
        train_step([plain, ours], step)
        assert apart(plain, ours) == 0


@on_ranks("two")
def test_a_layer_frozen_while_a_way_begins_is_averaged_as_in_plain_ddp() -> None:
    """It is unfrozen later. The user holds the reducers that were replaced."""
    plain, ours = small(), small()
    held = [ours.reducer]
    for values in ({"streams": 2}, {}, {"bucket_views": True}, {}):
        for model in (plain, ours):
            model.module[0].requires_grad_(False)
        accelerate_ddp(ours, Comm(**values))
        held.append(ours.reducer)
        assert not ours.module[0].weight.requires_grad
        for model in (plain, ours):
            model.module[0].requires_grad_(True)
        for step in range(3):
            train_step([plain, ours], step)
            assert apart(plain, ours) == 0


def reducers_alive() -> weakref.WeakSet[GradientReducer]:
    gc.collect()
    return weakref.WeakSet(one for one in gc.get_objects() if isinstance(one, GradientReducer))


@on_ranks("two")
def test_nothing_is_left_of_ways_that_have_gone() -> None:
    before, model = reducers_alive(), small()  # some of earlier tests may still be on their way
    for views in (True, False, True, False):
        accelerate_ddp(model, Comm(streams=2, bucket_views=views))
        train_step([model], 0)
        train_step([model], 1)
    assert len(reducers_alive() - before) == 1
    accelerate_ddp(model, Comm())
    train_step([model], 0)
    assert not reducers_alive() - before


@on_ranks("two")
def test_no_thread_is_left_of_models_that_have_gone() -> None:
    last = accelerate_ddp(small(), Comm(streams=2))
    before = threading.active_count()
    models = [accelerate_ddp(small(), Comm(streams=2)) for _ in range(3)]
    train_step([*models, last], 0)
    assert threading.active_count() >= before + 9
    models.clear()
    gc.collect()
    time.sleep(2.5)
    assert threading.active_count() <= before
    train_step([last], 1)
    accelerate_ddp(last, Comm())


@pytest.mark.parametrize(
    "values",
    [{"bucket_views": True}, {"streams": 2},
     {"hierarchical": True, "streams": 2, "bucket_mb": 0.001}],
    ids=str,
)  # fmt: skip
@on_ranks("two")
def test_a_sum_may_be_larger_than_the_type_holds_where_the_mean_is_not(values: dict) -> None:
    plain, ours = small(), accelerate_ddp(small(), Comm(**values))
    for model in (plain, ours):
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: torch.full_like(gradient, 3e38))
        model(batch(0)).sum().backward()
    assert apart(plain, ours, gradients=True) == 0


@pytest.mark.parametrize("model", ["unused", "branches"])
def test_unused_parameters_by_the_option(two: Ranks, model: str) -> None:
    verdict = run(dataclasses.replace(USERS, model=model, comm="find_unused"), two)
    assert verdict.outcome == SAME, verdict.lines


def test_a_rank_alone_averages_and_rounds_nothing() -> None:
    with Ranks(1, 1) as alone:
        for comm in ("together", "bf16", "int8"):
            case = dataclasses.replace(USERS, launch="one_group_before", comm=comm)
            verdict = run(case, alone)
            assert verdict.outcome == SAME, verdict.lines


# --------------------------------------------------------------------------------------------------
# A model that accelerate() returned: it stays the user's, and is averaged by every road


@pytest.mark.parametrize(
    "loop",
    ["simple", "two_backwards", "output_by_output", "two_calls", "same_graph_twice", "accumulate",
     "freeze", "gradient_penalty", "laid_out_anew"],
)  # fmt: skip
def test_gradients_are_the_mean_of_those_of_the_ranks(two: Ranks, loop: str) -> None:
    case = Case(model="named_tuple_output", loop=loop, launch="two_group_before", epochs=3)
    verdict = run(case, two)
    assert verdict.outcome not in (FAILED, REFUSED), verdict.lines


class Net(nn.Module):
    """Model with an encoder and two heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head, self.probe = nn.Linear(6, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(x)
        return self.head(hidden), self.probe(hidden.detach())


def train_heads(model: Any) -> None:
    head, probe = model(batch(0))
    (head.sum() + probe.square().sum()).backward()


def accelerated(net: nn.Module) -> Any:
    return accelerate(net, None, Config.plain())[0]


@on_ranks("two")
def test_what_several_processes_cannot_train_is_refused_in_one_line() -> None:
    for model, message in (
        (nn.LazyLinear(3), "the model has lazy parameters"),
        (nn.SyncBatchNorm(3), "the model has SyncBatchNorm"),
        (DDP(nn.Linear(1, 1)), "the model is a DistributedDataParallel already"),
    ):
        with pytest.raises(InputError, match=rf"\A{message}.*\Z"):
            accelerated(model)
    ours = accelerated(Net())
    with pytest.raises(InputError, match=r"\Athe gradient of head\..*\Z"):
        ours.head(ours.encoder(batch(0))).sum().backward()


@on_ranks("two")
def test_training_does_not_go_on_after_a_backward_pass_that_raised() -> None:
    def fail(gradient: Tensor) -> Tensor:
        raise KeyError

    ours = accelerated(Net())
    head, probe = ours(batch(0))
    head.register_hook(fail)
    with pytest.raises(KeyError):
        (head.sum() + probe.sum()).backward()
    with pytest.raises(RunFailed, match=r"\Athe last backward pass ended with an error.*\Z"):
        train_heads(ours)


@pytest.mark.parametrize(
    "change",
    [{"config": "aot"}]
    + [{"loop": loop} for loop in ("simple", "two_calls", "two_backwards", "closure")],
    ids=str,
)
def test_unused_parameters_are_named_and_not_stepped_with_the_option_that_handles_them(
    two: Ranks, change: dict
) -> None:
    """There is one step, which no forward pass follows."""
    case = Case(model="unused", launch="two_group_before", samples=6, epochs=1, **change)
    verdict = run(case, two)
    assert verdict.outcome == REFUSED, verdict.lines
    (said,) = verdict.lines
    assert said.startswith("second.weight (and 1 more) got no gradient in the last backward pass")
    assert "config.comm.find_unused_parameters = True" in said
    if case.loop != "two_calls":  # of which DDP takes only one, where it looks for parameters
        verdict = run(dataclasses.replace(case, comm="find_unused"), two)
        assert verdict.outcome not in (FAILED, REFUSED), verdict.lines


@on_ranks("two")
def test_parts_that_are_put_in_later_start_alike_everywhere_and_are_averaged() -> None:
    """The ids of the heads are used again."""
    ours = accelerated(Net())
    for number in range(6):
        torch.manual_seed(100 * dist.get_rank() + number)
        ours.head = nn.Linear(4, 1)
        train_heads(ours)
        for own in (ours.head.weight.detach(), ours.encoder.weight.grad, ours.head.weight.grad):
            assert all(own.equal(other) for other in all_ranks(own))
        ours.zero_grad()


@on_ranks("two")
def test_a_gradient_of_a_part_is_each_ranks_own_inside_no_sync() -> None:
    ours, alone = accelerated(Net()), Net()
    with ours.no_sync():
        ours.head(ours.encoder(batch(0))).sum().backward()
    alone.head(alone.encoder(batch(0))).sum().backward()
    assert torch.equal(ours.encoder.weight.grad, alone.encoder.weight.grad)


@on_ranks("two")
def test_the_model_inside_communicates_with_nobody_and_may_be_called_on_one_rank_alone() -> None:
    ours = accelerated(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    ours(batch(0)).sum().backward()
    ours.eval()
    if dist.get_rank() == 0:
        with torch.no_grad():
            assert len(ours.module(batch(0))) == 3
    dist.barrier()


@on_ranks("two")
def test_checkpoints_copies_and_averages_are_those_of_the_users_model() -> None:
    """Keys, names, type, mode and calls of hooks are compared in every case of against_torch."""
    net = Net()
    ours = accelerated(net)
    train_heads(ours)
    assert ours.module is net and ours.encoder is net.encoder and ours.device == torch.device("cpu")
    copied = copy.deepcopy(ours)
    assert type(copied) is type(copy.copy(ours)) is Net and distributed(copied) is None
    averaged = torch.optim.swa_utils.AveragedModel(ours)
    averaged.update_parameters(ours)
    assert averaged.module.encoder.weight.equal(ours.encoder.weight)
    checkpoint = get_model_state_dict(ours)
    set_model_state_dict(ours, checkpoint)
    assert list(checkpoint) == list(net.state_dict())


# --------------------------------------------------------------------------------------------------
# gallery_lib.comm.auto: the import accelerates


class Mine(DDP):
    """Subclass whose constructor goes on after DDP's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.mine = "mine"


@on_ranks("two")
def test_the_import_accelerates_what_it_can_and_can_be_undone() -> None:
    auto = importlib.import_module("gallery_lib.comm.auto")
    auto.options = Comm(streams=2)
    for change, accelerates in ((auto.enable, True), (auto.disable, False), (auto.enable, True)):
        change()
        model = small()
        loss(model, 0).backward()
        assert (gradient_reducer(model) is not None) is accelerates
    mine = Mine(stack([6, 3]))
    loss(mine, 0).backward()
    assert gradient_reducer(mine) is not None and mine.mine == "mine"
    groups = [dist.new_group([rank]) for rank in range(2)]
    net = stack([4, 3, 2])
    first, second, *_ = net.named_parameters()
    net[2].requires_grad_(False)
    with pytest.warns(UserWarning, match="not in the default process group"):
        DDP(net, process_group=groups[dist.get_rank()])
    with pytest.warns(UserWarning, match="delay_all_reduce_named_params"):
        delayed = {"delay_all_reduce_named_params": [first, second]}
        DDP(net, **delayed, param_to_hook_all_reduce=first[1])
    auto.disable()

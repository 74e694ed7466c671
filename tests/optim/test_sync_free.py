"""Our sync-free optimizers and GradScaler do what torch's do, and no step waits for the device.

LAMB is compared with timm's. `test_forms.py` has weights and gradients of any kind.
"""

import functools
import pickle

import pytest
import torch
import torch.distributed as dist
from optim.training import (
    ADAM,
    BY_NAME,
    OVERFLOW_AT,
    PAIRS,
    SCALING,
    STEPS,
    NothingWaits,
    batch,
    losses,
    model,
    warmup,
)
from ranks import on_ranks
from refusal import refused
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from gallery_lib.comm import process_group
from gallery_lib.kernels.runtime import operators
from gallery_lib.optim import fused_cpu, sync_free
from gallery_lib.optim.grad_scaler import GradScaler, Updates

EACH = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
WITH_ADAM = pytest.mark.parametrize("pair", [*PAIRS, ADAM], ids=lambda pair: pair.name)


@pytest.fixture(params=["torch's check", "one read"])
def read(request):
    """Check gradients by torch's operator, as on a CPU, or by ours, as where kernels run."""
    request.getfixturevalue("kernels" if request.param == "one read" else "switched_on")
    return request.param


def updates(kind: str, pair, net, max_norm: float | None = None) -> Updates:
    build, scaling = (
        (pair.ours, GradScaler) if kind == "ours" else (pair.theirs, torch.amp.GradScaler)
    )
    optimizer, scaler = build(net.parameters()), scaling("cpu", **SCALING)
    return Updates(optimizer, scaler, LambdaLR(optimizer, warmup), max_norm)


def run(net, chosen: Updates, steps=range(STEPS), overflow_at=OVERFLOW_AT) -> list[float]:
    return losses(net, chosen.optimizer, steps, chosen.scaler, overflow_at, chosen.take)


@EACH
@pytest.mark.parametrize("max_norm", [None, 0.3], ids=["unclipped", "clipped"])
def test_nothing_in_an_update_waits(pair, max_norm, read):
    net, before = model(), operators.counts()
    chosen = updates("ours", pair, net, max_norm)
    scaler = chosen.scaler
    with NothingWaits():
        for step in range(4):
            chosen.optimizer.zero_grad()
            scaler.scale(net(torch.ones(2, 12)).square().mean()).backward()
            if step == 2:
                net[3].bias.grad.fill_(torch.nan)
            chosen.take()
    assert scaler.skipped_steps() == 1
    checks = (operators.counts() - before)["gradient_statistics", operators.PLAIN_TORCH]
    assert checks == (4 if read == "one read" and max_norm is None else 0)


def test_torchs_scaler_waits_with_an_optimizer_that_is_none_of_ours():
    """The test above can fail."""
    net = model()
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.RMSprop(net.parameters())
    scaler.scale(net(torch.ones(2, 12)).mean()).backward()
    with NothingWaits(), pytest.raises(AssertionError, match="waits for the device"):
        scaler.step(optimizer)


def test_torchs_fused_optimizer_does_not_wait_either():
    net = model()
    optimizer, scaler = torch.optim.AdamW(net.parameters(), fused=True), GradScaler("cpu")
    with NothingWaits():
        scaler.scale(net(torch.ones(2, 12)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.skipped_steps() == 0


def test_an_optimizer_that_knows_nothing_of_scaling_works():
    pair = PAIRS[-1]
    net, other = model(torch.float64), model(torch.float64)
    optimizer = pair.theirs(net.parameters())
    ours = Updates(optimizer, GradScaler("cpu", **SCALING), LambdaLR(optimizer, warmup), 0.3)
    assert run(net, ours, range(60)) == pytest.approx(
        run(other, updates("torch's", pair, other, 0.3), range(60)), rel=1e-9
    )
    assert ours.skipped_steps() == sum(step < 60 for step in OVERFLOW_AT)


@pytest.mark.parametrize(
    "pair", [pair for pair in (*PAIRS, ADAM) if pair.name != "LAMB"], ids=lambda pair: pair.name
)
@pytest.mark.parametrize("direction", ["from torch", "to torch"])
@pytest.mark.filterwarnings("error")
def test_a_checkpoint_with_scaler_and_schedule_is_continued_with_the_same_losses(
    pair, direction, tmp_path
):
    first, second = ("torch's", "ours") if direction == "from torch" else ("ours", "torch's")
    net, other = model(torch.float64), model(torch.float64)
    chosen, continued = updates(first, pair, net), updates(second, pair, other)
    run(net, chosen, range(4))
    assert chosen.skipped_steps() == 2  # the first and the last step

    def parts(net, of):
        return net, of.optimizer, of.scaler, of.schedule

    torch.save([part.state_dict() for part in parts(net, chosen)], tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    for part, state in zip(parts(other, continued), saved, strict=True):
        part.load_state_dict(state)
    assert run(other, continued, range(4, 24)) == pytest.approx(
        run(net, chosen, range(4, 24)), rel=1e-5
    )
    assert continued.scaler.state_dict() == chosen.scaler.state_dict()


def test_two_optimizers_are_skipped_one_by_one():
    nets = [model(), model()]
    optimizers = [PAIRS[k].ours(net.parameters()) for k, net in enumerate(nets)]
    before = [net[0].weight.detach().clone() for net in nets]
    scaler = GradScaler("cpu", init_scale=8.0)
    scaler.scale(sum(net(torch.ones(2, 12)).square().mean() for net in nets)).backward()
    nets[0][3].bias.grad.fill_(torch.inf)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    stayed = [torch.equal(net[0].weight, weight) for net, weight in zip(nets, before, strict=True)]
    assert stayed == [True, False]
    assert (scaler.get_scale(), scaler.skipped_steps()) == (4.0, 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_a_grad_scaler_of_torchs_that_survives_pickling_and_may_be_disabled(enabled):
    net, scaler = model(), GradScaler("cpu", **SCALING, enabled=enabled)
    assert isinstance(scaler, torch.amp.GradScaler)
    losses(net, PAIRS[0].ours(net.parameters()), range(2), scaler, (1,))
    assert scaler.skipped_steps() == enabled and bool(scaler.state_dict()) is enabled
    assert pickle.loads(pickle.dumps(scaler)).state_dict() == scaler.state_dict()


@WITH_ADAM
def test_200_steps_have_the_losses_of_torchs_optimizer(pair):
    """In fp64 nothing but the order of operations differs."""
    net, other = model(torch.float64), model(torch.float64)
    ours = losses(net, pair.ours(net.parameters()))
    theirs = losses(other, pair.theirs(other.parameters()))
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert ours[-1] < 0.6 * ours[0]


def test_a_learning_rate_in_float64_on_the_host_stays_exact():
    values = []
    for package in (sync_free, torch.optim):
        weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = package.SGD([weight], lr=torch.tensor(0.1, dtype=torch.float64))
        weight.grad = torch.full_like(weight, 1 / 3)
        optimizer.step()
        values.append(weight.detach())
    torch.testing.assert_close(*values, rtol=1e-15, atol=0)


def test_lamb_refuses_what_no_class_of_torchs_could_take_and_changes_nothing():
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, 2))
    optimizer = sync_free.LAMB([{"params": [first]}, {"params": [second]}], lr=0.1)

    def closure():
        first.grad, second.grad = torch.ones(3), torch.ones(3, 2).to_sparse()
        return 1.0

    with refused("params", "dense"):
        optimizer.step(closure)
    assert bool((first == 1).all()) and not optimizer.state


@WITH_ADAM
@pytest.mark.parametrize("groups", [1, 2])
def test_a_step_that_is_called_below_the_compiler_is_torchs(pair, groups):
    def weights_after(kind, compiled):
        generator = torch.Generator().manual_seed(0)
        weights = [nn.Parameter(torch.randn(5, generator=generator)) for _ in range(2)]
        optimizer = kind([{"params": [w]} for w in weights] if groups == 2 else weights)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.randn(5, generator=generator)
            step()
        return [weight.detach() for weight in weights]

    torch._dynamo.reset()
    theirs = weights_after(pair.theirs, False)
    one_pass = functools.partial(getattr(fused_cpu, pair.name, pair.ours), **pair.arguments)
    for ours in (pair.ours, pair.ours if pair.name == "LAMB" else one_pass):
        torch.testing.assert_close(weights_after(ours, True), theirs, rtol=1e-5, atol=1e-6)


RUNS = [*((name, True) for name in BY_NAME if name != "Adam"), ("AdamW", False), ("SGD", False)]


@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize(("name", "before"), RUNS)
@on_ranks("two")
def test_ranks_skip_the_same_steps_and_train_as_one_process_does_with_torchs_classes(name, before):
    """A gradient becomes infinite on one rank alone, `before` DDP averages it or after that."""
    net, alone = model(torch.float64), model(torch.float64)
    distributed = nn.parallel.DistributedDataParallel(net) if before else net
    ours, theirs = updates("ours", BY_NAME[name], net, 0.3), updates("", BY_NAME[name], alone, 0.3)
    half = slice(8 * dist.get_rank(), 8 * dist.get_rank() + 8)

    def overflows(step):  # the ranks take turns
        return step in OVERFLOW_AT and OVERFLOW_AT.index(step) % 2 == dist.get_rank()

    net[0].weight.register_hook(
        lambda gradient: gradient.fill_(torch.inf) if before and overflows(step) else gradient
    )
    for step in range(STEPS):
        inputs, labels = batch(step, torch.float64)
        with torch.no_grad():
            of_all = nn.functional.cross_entropy(net(inputs), labels).item()
        skipped = ours.skipped_steps()
        ours.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(distributed(inputs[half]), labels[half])
        ours.scaler.scale(loss).backward()
        for parameter in () if before else net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        if not before and overflows(step):
            net[0].weight.grad.fill_(torch.inf)
        with NothingWaits():
            ours.take()
        assert [of_all] == pytest.approx(run(alone, theirs, range(step, step + 1)), rel=1e-5)
        assert ours.skipped_steps() - skipped == (step in OVERFLOW_AT)
        assert ours.scaler.get_scale() == theirs.scaler.get_scale()
        assert ours.learning_rate() == pytest.approx(theirs.learning_rate(), rel=1e-6)
    for parameter in net.parameters():
        assert all(parameter.equal(other) for other in process_group.all_ranks(parameter))

"""Moments in bf16: what is rounded, by which numbers; what a checkpoint holds; what is refused.

The oracles are the one-pass step in fp32, the rounding written down once more in NumPy, the
definition of an average in float64, and torch's own classes.
"""

import copy
import pickle
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import tiny_task
import torch
from ranks import on_ranks
from refusal import refused
from torch import Tensor, nn

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.kernels import cpu_optimizers
from gallery_lib.measure.communication.convergence import Scores
from gallery_lib.optim import bf16_moments
from gallery_lib.optim.adoption import accelerate_optimizer, release_optimizer
from gallery_lib.train.loop import train
from gallery_lib.train.session import Plain, Prepared, Recipe

BETAS, LR = (0.9, 0.999), 0.01
LARGEST = float(torch.finfo(torch.bfloat16).max)


def random_bits(seed: int, place: int, step: int, elements: int) -> Any:
    """Return the 32 bits that each element of a parameter gets in a step."""
    whole = 2**64 - 1

    def mixed(state: int) -> int:
        state = (state + 0x9E3779B97F4A7C15) & whole
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & whole
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & whole
        return state ^ (state >> 31)

    key = mixed((mixed((mixed(seed) + place) & whole) + step) & whole)
    bits = numpy.arange(elements, dtype=numpy.uint32) * numpy.uint32(0x9E3779B1)
    bits += numpy.uint32(key & 0xFFFFFFFF)
    bits = (bits ^ (bits >> 16) ^ numpy.uint32(key >> 32)) * numpy.uint32(0x7FEB352D)
    return bits ^ (bits >> 15)


def rounded(values: Tensor, draws: Any) -> Tensor:
    """Return each value as one of the two bf16 around it: away from 0 where the draw is high."""
    below = (values.view(torch.int32) & -65536).view(torch.float32)
    above = (below.view(torch.int32) + 65536).view(torch.float32)
    part = (values.double() - below.double()) / (above.double() - below.double())
    up = torch.from_numpy(draws.astype(numpy.int64)) + 65536 * part >= 65536
    drawn = torch.where(up, above, below)
    return torch.where(values.abs() < LARGEST, drawn, below).bfloat16()


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stepped(weights: list[nn.Parameter], optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for place, weight in enumerate(weights):
            weight.grad = normal(*weight.shape, seed=100 * step + place)
        optimizer.step()


def moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [s[n] for s in optimizer.state.values() for n in ("exp_avg", "exp_avg_sq")]


def in_memory_order(tensor: Tensor) -> Tensor:
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).reshape(-1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdamW", {"weight_decay": 0.1}),
        ("Adam", {"weight_decay": 0.1, "maximize": True}),
        ("Adam", {"betas": (0.3, 0.9)}),
    ],
    ids=str,
)
def test_a_step_is_that_in_fp32_with_moments_rounded_by_a_counter(
    threads: int, name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    shapes = [(1,), (15,), (16,), (0,), (17,), (70_001,), (4, 3, 5, 5), (33_000,)]
    weights = [nn.Parameter(normal(*shape, seed=n)) for n, shape in enumerate(shapes)]
    weights[6].data = weights[6].data.contiguous(memory_format=torch.channels_last)
    optimizer = getattr(bf16_moments, name)(weights, lr=LR, **options)
    for group in optimizer.param_groups:
        group["moments_seed"] = 2**63 + 11
    group = {key: optimizer.param_groups[0][key] for key in ("lr", "betas", "eps", "weight_decay")}
    group |= {"maximize": bool(options.get("maximize")), "decoupled_weight_decay": name == "AdamW"}
    for step in range(1, 4):
        taking = [p for place, p in enumerate(weights) if place != step]  # one has no gradient
        for place, weight in enumerate(weights):
            drawn = normal(*weight.shape, seed=100 * step + place)
            weight.grad = torch.empty_like(weight).copy_(drawn) if place != step else None
        states = [optimizer.state[p] for p in taking]
        counts = [float(s["step"]) + 1 if s else 1.0 for s in states]
        columns: Any = [[p.detach().clone() for p in taking], [p.grad for p in taking]]
        for key in ("exp_avg", "exp_avg_sq"):
            before = [s.get(key, torch.zeros_like(p)) for p, s in zip(taking, states, strict=True)]
            columns.append([one.float() for one in before])
        optimizer.step()
        cpu_optimizers.adam_(*columns, counts, **group)
        for n, weight in enumerate(taking):
            number = next(i for i, one in enumerate(weights) if one is weight)
            assert weight.equal(columns[0][n])
            bits = random_bits(2**63 + 11, number, int(counts[n]), weight.numel())
            draws = bits & 0xFFFF, bits >> 16
            for place, key in enumerate(("exp_avg", "exp_avg_sq")):
                expected = rounded(in_memory_order(columns[2 + place][n]), draws[place])
                ours = in_memory_order(optimizer.state[weight][key])
                assert ours.view(torch.int16).equal(expected.view(torch.int16))


def kept(gradient: float, before: tuple[float, float], steps: range, elements: int) -> list[Tensor]:
    """Return both moments after a step from `before`, for each step number, [steps, elements]."""
    weight = nn.Parameter(torch.zeros(elements))
    optimizer = bf16_moments.AdamW([weight], betas=BETAS)
    weight.grad = torch.full_like(weight, gradient)
    found: list[list[Tensor]] = [[], []]
    for step in steps:
        optimizer.state[weight] = {
            "step": torch.tensor(float(step)),
            **{
                name: torch.full((elements,), value, dtype=torch.bfloat16)
                for name, value in zip(("exp_avg", "exp_avg_sq"), before, strict=True)
            },
        }
        optimizer.step()
        for place, value in enumerate(moments(optimizer)):
            found[place].append(value.double())
    return list(map(torch.stack, found))


@pytest.mark.parametrize("gradient", [1.03, -0.7, 3e-20, 2e-38, 1e-41])
def test_the_mean_of_many_draws_is_the_value(gradient: float) -> None:
    before = (1.0, 1.0) if abs(gradient) > 0.1 else (0.0, 0.0)
    for place, values in enumerate(kept(gradient, before, range(1, 1001), 100)):
        g = torch.tensor(gradient)
        start, rest = torch.tensor(before[place]), torch.tensor(1.0 - BETAS[place])
        exact = float(start * BETAS[place] + (rest * g if place == 0 else rest * g * g))
        seen = values.unique()
        assert len(seen) <= 2
        if exact == 0.0:
            assert seen.tolist() == [0.0]
            continue
        assert len(seen) == 2 and seen[0] <= exact <= seen[1]
        for part in (values, values[:, :1], values[:1]):  # all; one element; one step
            error = float(seen[1] - seen[0]) / 2 / part.numel() ** 0.5
            assert abs(float(part.mean()) - exact) < 4.5 * error


def test_draws_of_elements_steps_and_moments_are_unrelated() -> None:
    bits = random_bits(7, 0, 1, 2**16), random_bits(7, 0, 2, 2**16), random_bits(7, 1, 1, 2**16)
    rows = [half for one in bits for half in (one & 0xFFFF, one >> 16)]
    rows += [numpy.roll(rows[0], shift) for shift in (1, 2, 16)]
    related = numpy.corrcoef(numpy.stack(rows).astype(float)) - numpy.eye(len(rows))
    assert abs(related).max() < 5 / 2**8  # five standard errors
    counts = numpy.bincount(rows[0] >> 8, minlength=256)
    assert abs(counts - 256).max() < 5 * 16


def test_a_second_moment_moves_where_rounding_to_the_nearest_stands_still() -> None:
    steps, elements, gradient = 200, 4096, 1.5**0.5
    nearest, exact = torch.ones((), dtype=torch.bfloat16), 1.0
    for _ in range(steps):
        nearest = (nearest.float() * BETAS[1] + (1 - BETAS[1]) * gradient**2).bfloat16()
        exact = exact * BETAS[1] + (1 - BETAS[1]) * gradient**2
    assert float(nearest) == 1.0 and exact > 1.09
    weight = nn.Parameter(torch.zeros(elements))
    optimizer = bf16_moments.AdamW([weight], betas=BETAS)
    ones = torch.ones(elements, dtype=torch.bfloat16)
    optimizer.state[weight] = {"step": torch.tensor(9.0), "exp_avg": ones, "exp_avg_sq": ones + 0}
    weight.grad = torch.full_like(weight, gradient)
    for _ in range(steps):
        optimizer.step()
    error = 2**-8 * (steps / elements) ** 0.5
    assert abs(float(moments(optimizer)[1].double().mean()) - exact) < 4 * error


@pytest.mark.parametrize(
    ("gradient", "before", "first", "second"),
    [
        (0.0, (0.0, 0.0), 0.0, 0.0),
        (-0.0, (-0.0, 0.0), 0.0, 0.0),  # x + -x is +0
        (float("nan"), (1.0, 1.0), float("nan"), float("nan")),
        (float("inf"), (1.0, 1.0), float("inf"), float("inf")),
        (-float("inf"), (1.0, 1.0), -float("inf"), float("inf")),
        (3.4e38, (LARGEST, LARGEST), LARGEST, float("inf")),  # the mean lies above bf16's largest
        (-3.4e38, (-LARGEST, 1.0), -LARGEST, float("inf")),
        (2.0, (2.0, 4.0), 2.0, 4.0),  # exact in bf16
    ],
)
def test_what_has_no_two_neighbours_is_kept_as_torch_rounds_it(
    gradient: float, before: tuple[float, float], first: float, second: float
) -> None:
    for values, expected in zip(
        kept(gradient, before, range(1, 41), 100), (first, second), strict=True
    ):
        wanted = torch.full_like(values, expected)
        if expected == 4.0:  # beta2 and 1 - beta2 are no binary fractions
            torch.testing.assert_close(values, wanted, rtol=2**-7, atol=0.0)
        else:
            assert values.equal(wanted) or (expected != expected and bool(values.isnan().all()))
            assert values.signbit().equal(wanted.signbit()) or expected != expected


# --------------------------------------------------------------------------------------------------
# As a user's optimizer


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 3))


def begun(name: str = "AdamW", seed: int | None = 5) -> tuple[list[nn.Parameter], Any]:
    weights = list(network().parameters())
    optimizer = getattr(torch.optim, name)(weights, lr=LR)
    if seed is not None:
        said = accelerate_optimizer(optimizer, moments_seed=seed)
        assert "in one pass over memory on the CPU, with moments in bf16." in said
    return weights, optimizer


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_a_resumed_training_goes_on_bit_for_bit_whatever_its_own_seed_is(name: str) -> None:
    weights, optimizer = begun(name)
    stepped(weights, optimizer, range(5))
    saved = copy.deepcopy(([p.detach() for p in weights], optimizer.state_dict()))
    assert {m.dtype for m in moments(optimizer)} == {torch.bfloat16}
    copied = copy.deepcopy((weights, optimizer))
    stepped(weights, optimizer, range(5, 9))
    others = []
    for order in ("load", "accelerate"):  # which comes first
        other, again = begun(name, 77 if order == "accelerate" else None)
        with torch.no_grad():
            torch._foreach_copy_(other, saved[0])
        again.load_state_dict(copy.deepcopy(saved[1]))
        accelerate_optimizer(again, moments_seed=78)
        others.append((other, again))
    for other, again in (*others, copied):
        stepped(other, again, range(5, 9))
        assert all(map(torch.equal, other, weights))
        assert all(map(torch.equal, moments(again), moments(optimizer)))
    other, another = begun(name, 6)
    stepped(other, another, range(9))
    assert not all(map(torch.equal, other, weights))


def test_states_go_from_fp32_to_bf16_with_a_line_and_back_without_loss(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain_weights, plain = begun(seed=None)
    stepped(plain_weights, plain, range(3))
    weights, optimizer = begun()
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    said = capsys.readouterr().err
    assert said == "config.compute.moments=bf16; moments in fp32 were rounded to it, once\n"
    for ours, theirs in zip(moments(optimizer), moments(plain), strict=True):
        assert ours.equal(theirs.bfloat16())
    stepped(weights, optimizer, range(3, 5))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    unpickled = pickle.loads(pickle.dumps(optimizer))
    assert type(unpickled) is torch.optim.AdamW and not capsys.readouterr().err
    kept_moments = copy.deepcopy(moments(optimizer))
    release_optimizer(optimizer)
    assert type(optimizer) is torch.optim.AdamW
    for own in (plain, unpickled, optimizer):
        assert all(m.dtype is torch.float32 for m in moments(own))
        assert all(m.equal(k.float()) for m, k in zip(moments(own), kept_moments, strict=True))
        stepped(own.param_groups[0]["params"], own, range(5, 6))
    accelerated_later = begun(seed=None)
    stepped(*accelerated_later, range(3))
    said = accelerate_optimizer(accelerated_later[1], moments_seed=1)
    assert said.endswith("with moments in bf16; moments in fp32 were rounded to it, once.")


def one(**options: Any) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, **options))]


REFUSED: dict[str, tuple[Callable[[], torch.optim.Optimizer], str]] = {
    "SGD": (lambda: torch.optim.SGD(one()), "Adam and AdamW on the CPU alone have them, and SGD"),
    "RAdam": (lambda: torch.optim.RAdam(one()), "and RAdam takes"),
    "NAdam": (lambda: torch.optim.NAdam(one()), "there is no faster form of it here"),
    "amsgrad": (lambda: torch.optim.AdamW(one(), amsgrad=True), "no amsgrad"),
    "tensor": (lambda: torch.optim.AdamW(one(), lr=torch.tensor(0.1)), "numbers as options"),
    "bf16": (lambda: torch.optim.AdamW(one(dtype=torch.bfloat16)), "fp32 parameters alone"),
    "fp64": (lambda: torch.optim.Adam(one() + one(dtype=torch.float64)), "fp32 parameters alone"),
    "meta": (lambda: torch.optim.AdamW(one(device="meta")), "its parameters are on meta"),
    "fused": (lambda: torch.optim.AdamW(one(), fused=True), "fused=True was chosen"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_optimizer_that_cannot_have_them_is_refused_and_unchanged(name: str) -> None:
    build, words = REFUSED[name]
    optimizer = build()
    before = type(optimizer), dict(vars(optimizer))
    with refused("compute.moments", "config.compute.moments=bf16", type(optimizer).__name__, words):
        accelerate_optimizer(optimizer, moments_seed=0)
    assert (type(optimizer), dict(vars(optimizer))) == before


def test_a_step_that_would_be_torchs_is_refused_with_nothing_changed() -> None:
    weights, optimizer = begun()
    stepped(weights, optimizer, range(2))
    before = copy.deepcopy(([p.detach() for p in weights], optimizer.state_dict()["state"]))
    weights[0].grad = weights[0].grad.to_sparse()  # type: ignore[union-attr]
    with refused("compute.moments", "gapless weights and gradients in fp32"):
        optimizer.step()
    after = [p.detach() for p in weights], optimizer.state_dict()["state"]
    torch.testing.assert_close(after, before, rtol=0.0, atol=0.0)


def test_steps_in_the_backward_pass_are_refused() -> None:
    with refused("optimizer", "a step of AdamW", "config.compute.moments=bf16"):
        EarlySteps(begun()[1])


def with_bf16() -> Config:
    config = Config.plain()
    config.compute.optimizer, config.compute.moments = True, "bf16"
    return config


def test_accelerate_says_so_and_refuses_the_option_where_it_would_do_nothing() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    accelerate(model, optimizer, with_bf16())
    assert techniques(model)["optimizer"].endswith("with moments in bf16.")
    assert isinstance(optimizer, bf16_moments.AdamW)
    with refused("compute.moments", "needs an optimizer"):
        accelerate(network(), with_bf16())
    model, config = network(), with_bf16()
    config.compute.optimizer = False
    with refused("compute.moments", "config.compute.optimizer"):
        accelerate(model, torch.optim.AdamW(model.parameters()), config)


@pytest.mark.several_cores
@on_ranks("two")
def test_ranks_with_seeds_of_their_own_keep_the_same_moments() -> None:
    from gallery_lib.comm import process_group

    rank = process_group.rank()
    model = network()
    torch.manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    twin, optimizer = accelerate(model, optimizer, with_bf16())
    for step in range(4):
        optimizer.zero_grad()
        twin(normal(8, 12, seed=10 * step + rank)).square().mean().backward()
        optimizer.step()
    values = [p.detach() for p in model.parameters()] + moments(optimizer)
    everywhere = process_group.all_ranks([value.float().tolist() for value in values])
    assert everywhere[0] == everywhere[1]


class OnePassAlone(Recipe):
    """Eager training with the one-pass optimizer, whose moments are of this dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def prepare(self, plain: Plain) -> Prepared:
        config = with_bf16()
        config.compute.moments = self.dtype  # type: ignore[assignment]
        optimizer = plain.build_optimizer(accelerated=False)
        model, batches, optimizer = accelerate(plain.model, plain.loader, optimizer, config)
        return Prepared(model, batches, optimizer, None, techniques(model))


@pytest.mark.slow
def test_a_task_learns_as_well_over_eight_seeds(tmp_path: Path) -> None:
    scores: dict[str, list[float]] = {"fp32": [], "bf16": []}
    losses: dict[str, list[float]] = {"fp32": [], "bf16": []}
    for dtype in scores:
        for seed in range(8):
            run = tiny_task.config(
                seed=seed, max_steps=96, lr=3e-4, run_dir=str(tmp_path / f"{dtype}-{seed}")
            )
            results = train(run, recipe=OnePassAlone(dtype))
            scores[dtype].append(results.metrics["top1"])
            losses[dtype].append(statistics.mean(x for _, x in results.loss["curve"][-32:]))
    assert scores["fp32"] != scores["bf16"] or losses["fp32"] != losses["bf16"]
    assert 0.4 < statistics.mean(scores["fp32"]) < 0.98  # neither untaught nor saturated
    assert Scores(scores).verdict("bf16") != "worse", scores
    assert Scores(losses).verdict("bf16") != "better", losses  # a higher loss is the worse one

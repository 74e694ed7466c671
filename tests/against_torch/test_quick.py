"""The battery's part for every commit: drawn trainings, and proof that it finds a planted fault."""

from __future__ import annotations

import dataclasses
from typing import Any

import psutil
import pytest

from against_torch.battery import battery, find_planted
from against_torch.case import Case
from against_torch.compare import union
from against_torch.launches import Server
from against_torch.loaders import expected
from against_torch.run import FAILED, SAME, run

SEED = 7


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lost_sample"])
def test_a_planted_fault_is_found(name):
    assert find_planted(name, SEED, 60.0)


@pytest.mark.parametrize(
    ("fault", "case"),
    [
        ("key_with_prefix", Case()),
        ("scaled_gradient", Case()),
        ("stale_rate", Case(scheduler="step")),
        ("rounded_double", Case(model="double")),
        ("gradient_not_averaged", Case(launch="two", call="parts")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model,
)
def test_a_fault_makes_a_case_fail_that_passes_without_it(fault, case):
    assert run(case, Server()).lines == []
    assert run(dataclasses.replace(case, planted=fault), Server()).outcome == FAILED


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case(loader="drop_last", loop="accumulate", launch="two", samples=9),
        Case(model="unused", loop="two_backwards", launch="two", samples=5, batch_size=2),
        Case(
            model="compiled_before",
            loader="distributed_sampler",
            launch="two_group_without_variables",
            call="accelerate_ddp",
            comm="small_buckets",
        ),
    ],
    ids=lambda case: case.model,
)
def test_a_case_that_once_failed(case):
    assert run(case, Server()).outcome != FAILED


@pytest.mark.parametrize(
    ("case", "found"),
    [
        (Case(loader="shuffled", launch="two", samples=12), True),
        (Case(loader="unbatched", launch="two", samples=12, batch_size=1), True),
        (Case(loader="unbatched", launch="two", samples=12, batch_size=4), False),
        (Case(loader="subset", launch="two", samples=12), False),
    ],
    ids=lambda value: f"{value.loader} {value.batch_size}" if isinstance(value, Case) else None,
)
def test_an_order_that_comes_again_is_a_fault_where_chance_cannot_explain_it(case, found):
    size = case.batch_size
    samples = expected(case)
    batches = [samples[i : i + size] for i in range(0, len(samples), size)]
    shares = [batches[rank::2][: len(batches) // 2] for rank in range(2)]
    ranks: list[dict[str, Any]] = [
        {"samples": {"train": [share] * 2}, "complete": {"train": [True] * 2}} for share in shares
    ]
    lines = [line for line in union(case, ranks) if "order" in line]
    assert bool(lines) is found


def test_a_case_comes_back_from_json():
    case = Case(model="lstm", loader="stream", launch="two", samples=9, comm="streams")
    assert Case.of(case.json()) == case


def test_a_training_that_hangs_fails_by_name_and_nothing_is_left(tmp_path):
    assert run(Case(launch="two"), Server()).outcome == SAME
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    case = Case(launch="two", call="parts", planted="never_ends")
    assert (
        Server().run(case.json(), "product", case.launch, tmp_path, seconds=2.0)
        == "no end after 2 s (product)"
    )
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.slow
def test_a_minute_of_drawn_trainings_are_those_of_plain_pytorch():
    """`python -m tests.against_torch --hours 1` is the long version."""
    # The first 25 cases of this seed have no Inductor, which may take a minute to compile.
    tally = battery(23, 60.0, jobs=1)
    assert tally.total > 20
    assert not tally.failures, "\n".join(
        f"--case '{failure.case.json()}'" for failure in tally.failures
    )

"""User code works the same under every way of averaging, and with what accelerate() returns.

There are two ranks, where means are exact.
"""

from __future__ import annotations

import dataclasses

import pytest
from against_torch.case import Case
from against_torch.run import FAILED, REFUSED, SAME, run
from ranks import Ranks

pytestmark = pytest.mark.slow

USERS = Case(
    launch="two_group_before", loader="distributed_sampler", call="accelerate_ddp", batch_size=2
)
TURNS = dataclasses.replace(USERS, comm="turns", samples=16, epochs=17)


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
    verdict = run(dataclasses.replace(TURNS, **change), two)
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
def test_a_communication_hook_of_the_users_wins_until_another_way_has_one(
    two: Ranks, when: int, refused: bool
) -> None:
    for found in two.call("ways.own_hook", when):
        plain, tuned = found["said"]
        assert plain == "nothing was raised" and found["choice"] == "ddp"
        assert ("can only be called once" in tuned) is refused
        assert refused or found["exact"]


@pytest.mark.parametrize("function", ["copies", "frozen_at_a_rebuild"])
def test_copies_pickles_and_layers_frozen_while_a_way_begins_are_those_of_plain_ddp(
    two: Ranks, function: str
) -> None:
    assert all(two.call(f"ways.{function}"))


def test_nothing_is_left_of_ways_and_models_that_have_gone(two: Ranks) -> None:
    assert two.call("ways.replaced") == [[1, 0]] * 2
    for before, between, after in two.call("ways.deleted"):
        assert between >= before + 9 and after <= before


@pytest.mark.parametrize(
    ("wire", "most"),
    [
        ({"wire": "bf16"}, 2**-6),
        ({"wire": "fp16"}, 2**-8),
        ({"wire": "int8"}, 4 / 127),
        ({"wire": "int8", "hierarchical": True}, 4 / 127),
    ],
    ids=str,
)
def test_wire_formats_round_every_type_of_parameter_as_much_as_they_may(
    two: Ranks, wire: dict, most: float
) -> None:
    """Each term is rounded once, and so is the sum; terms are about twice as large as the mean."""
    for apart in two.call("ways.odd_parameters", wire):
        single = apart.pop("single")  # int8 rounds it in units of its neighbours' scale
        assert max(apart.values()) <= most and single < 0.5


@pytest.mark.parametrize(
    "values",
    [{"bucket_views": True}, {"streams": 2},
     {"hierarchical": True, "streams": 2, "bucket_mb": 0.001}],
    ids=str,
)  # fmt: skip
def test_a_sum_may_be_larger_than_the_type_holds_where_the_mean_is_not(
    two: Ranks, values: dict
) -> None:
    assert two.call("ways.large_gradients", values) == [True, True]


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


def test_what_several_processes_cannot_train_is_refused_in_one_line(two: Ranks) -> None:
    for said in two.call("twins.refusals"):
        expected = (
            "InputError: the model has lazy parameters",
            "InputError: the model has SyncBatchNorm",
            "InputError: the model is a DistributedDataParallel already",
            "InputError: the gradient of head.",
        )
        for message, beginning in zip(said, expected, strict=True):
            assert message.startswith(beginning) and "\n" not in message


def test_training_does_not_go_on_after_a_backward_pass_that_raised(two: Ranks) -> None:
    for said in two.call("twins.after_an_error"):
        assert said.startswith("RunFailed: the last backward pass ended with an error")
        assert "\n" not in said


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


YES = dict.fromkeys(("checkpoint", "module", "pickled", "averaged", "attributes"), True)


@pytest.mark.parametrize(
    ("function", "answers"),
    [
        # Parts that are put in later start alike everywhere, and are averaged.
        ("heads_in_turn", [[True] * 18] * 2),
        # Gradients of a rank alone are to be had inside no_sync.
        ("around_the_model_on_purpose", [True, True]),
        # The model inside may be called on one rank alone.
        ("evaluated_on_rank_0_alone", [5, 0]),
        ("facts", [{**YES, "device": "cpu", "copy": (True, True)}] * 2),
    ],
)
def test_a_twin_is_the_users_model(two: Ranks, function: str, answers: list) -> None:
    assert two.call(f"twins.{function}") == answers

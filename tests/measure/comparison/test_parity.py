"""Parity checks on made-up numbers: what they let pass, and what they do not."""

import math

import pytest
import torch

from gallery_lib.measure.comparison.pair import check_curves
from gallery_lib.measure.comparison.parity import (
    check_baseline,
    check_gradient_scale,
    check_gradients,
    check_losses,
    check_start,
    judge,
    rounding_explains,
)
from gallery_lib.measure.comparison.result import Check, Parity


def probe(gradients: dict[str, torch.Tensor], batches: int = 1) -> dict:
    """Return a probe in which each batch has the same gradients."""
    return {
        "batches": batches,
        "square_norms": {
            name: [float(g.double().square().sum())] * batches for name, g in gradients.items()
        },
        "samples": {name: [g.double().tolist()] * batches for name, g in gradients.items()},
        "weights": "the same",
        "first_batches": ["the same"],
    }


SAME_LOSSES = ([1.0], [1.0], [1.0])


def noisy(exact: dict[str, torch.Tensor], noise: float, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: g + noise * g.norm() / g.numel() ** 0.5 * torch.randn(g.shape, generator=generator)
        for name, g in exact.items()
    }


def probe_of(*batches: dict[str, torch.Tensor]) -> dict:
    """Return a probe in which each batch has gradients of its own."""
    probes = [probe(gradients) for gradients in batches]
    parts = {
        part: {name: [value for p in probes for value in p[part][name]] for name in batches[0]}
        for part in ("square_norms", "samples")
    }
    return probe(batches[0], len(batches)) | parts


EXACT = {
    f"layer{i}": torch.randn(512, generator=torch.Generator().manual_seed(i)) * 10.0**-i
    for i in range(4)
}


def judged(candidate: dict[str, torch.Tensor], *, level: str = "O0", noise: float = 1e-3) -> Parity:
    probes = (probe(noisy(EXACT, noise, 1)), probe(candidate), probe(EXACT))
    return judge(SAME_LOSSES, probes, level)


def test_rounding_noise_passes_by_limits_that_are_made_of_the_baselines_own_distance() -> None:
    parity = judged(noisy(EXACT, 2e-3, 2))
    checks = {check.name: check for check in parity.checks}
    gradients = checks["gradients"]
    assert parity.passed and gradients.limit == pytest.approx(3 * gradients.baselines + 3e-2)
    assert checks["losses"].baselines == 0.0
    assert checks["gradient scale"].baselines is None and checks["same start"].baselines is None


def test_runs_that_saw_other_batches_are_not_comparable() -> None:
    other = probe(EXACT) | {"first_batches": ["another"]}
    check = check_start(probe(EXACT), other, probe(EXACT))
    assert (check.passed, check.where) == (False, "batch 1")


@pytest.mark.parametrize(
    ("level", "noise", "factor"),
    [("O0", 1e-3, 1.01), ("O0", 1e-3, 0.99), ("O1", 0.2, 1.1), ("O1", 0.2, 0.9)],
)
@pytest.mark.parametrize("name", list(EXACT))
def test_one_parameters_wrong_scale_is_found_and_named(
    level: str, noise: float, factor: float, name: str
) -> None:
    wrong = noisy(EXACT, noise, 2)
    wrong[name] = wrong[name] * factor
    check = check_gradient_scale(probe(noisy(EXACT, noise, 1)), probe(wrong), probe(EXACT), level)
    assert (check.passed, check.where) == (False, name)


def test_more_noise_than_the_baseline_has_makes_gradients_longer_and_explains_only_that() -> None:
    """Half precision's attention: 0.5 of a gradient is noise in the baseline.

    In the candidate it is 0.9.
    """
    baseline, candidate = noisy(EXACT, 0.5, 1), noisy(EXACT, 0.9, 2)
    check = check_gradient_scale(probe(baseline), probe(candidate), probe(EXACT), "O1")
    assert check.passed and 0.1 < check.worst < check.limit < 0.3
    for factor in (1.5, 0.75):  # longer than noise explains; and shorter, which it never does
        wrong = {name: factor * gradient for name, gradient in candidate.items()}
        assert not check_gradient_scale(probe(baseline), probe(wrong), probe(EXACT), "O1").passed


def test_a_candidate_that_is_float64s_is_right_though_the_baseline_is_not_and_no_other_is() -> None:
    """A baseline whose own rounding makes one gradient longer by a sixth, on all batches.

    So the candidate is compared with float64.
    """
    baseline = dict(noisy(EXACT, 0.02, 1), layer2=1.17 * EXACT["layer2"])
    right = noisy(EXACT, 0.05, 2)

    def check(candidate: dict[str, torch.Tensor], exact_batches: int = 4) -> Check:
        return check_gradient_scale(
            probe(baseline, 4), probe(candidate, 4), probe(EXACT, exact_batches), "O1"
        )

    assert check(right).passed and "1 parameter(s) held against float64" in check(right).where
    assert not check(right, exact_batches=1).passed  # float64 has not seen what is to be judged
    assert not check(dict(right, layer2=1.06 * right["layer2"])).passed  # not float64's
    # Noise gives a gradient back the length that a wrong factor took.
    hidden = noisy(EXACT, 0.46, 2)["layer2"] / 1.1
    assert abs(float(hidden.norm() / EXACT["layer2"].norm()) - 1) < 0.05
    assert not check(dict(right, layer2=hidden)).passed


def test_noise_explains_a_length_on_the_batches_that_it_was_measured_on() -> None:
    """Half a gradient is noise in both, on the first batch; on others it is more in the baseline.

    So it was in Speech-Transformer on a CPU with AMX.
    """
    first, candidate, exact = noisy(EXACT, 0.55, 1), noisy(EXACT, 0.5, 2), probe(EXACT, 4)
    baseline = probe_of(first, *[noisy(EXACT, 0.8, 3)] * 3)

    def check(factor: float) -> Check:
        return check_gradient_scale(
            baseline, probe(dict(candidate, layer2=factor * candidate["layer2"]), 4), exact, "O1"
        )

    assert check(1.0).passed and check(1.0).worst > 0.05
    assert not check(0.9).passed and not check(1.3).passed
    lost = dict(baseline, samples={name: [[math.nan] * 512] * 4 for name in EXACT})
    assert not check_gradient_scale(lost, probe(candidate, 4), exact, "O1").passed


def test_a_candidate_whose_noise_is_large_on_the_first_batch_alone_is_right() -> None:
    """So it was in Speech-Transformer on two processes of a CPU with AVX512-BF16."""
    noise = [noisy(EXACT, level, seed) for seed, level in enumerate((0.7, 0.7, 0.7, 0.7, 0.69), 1)]
    quieter = [noisy(EXACT, 0.45, seed) for seed in (6, 7, 8)]
    baseline, exact = probe_of(*noise[:4]), probe(EXACT, 4)
    check = check_gradient_scale(baseline, probe_of(noise[4], *quieter), exact, "O1")
    assert check.passed and check.worst > 0.05
    for factor in (0.9, 1.2):
        wrong = probe_of(*({n: factor * g for n, g in b.items()} for b in (noise[4], *quieter)))
        assert not check_gradient_scale(baseline, wrong, exact, "O1").passed


def test_a_gradient_of_the_right_length_in_the_wrong_direction_is_found() -> None:
    wrong = dict(EXACT, layer2=EXACT["layer2"].flip(0))
    check = check_gradients(probe(noisy(EXACT, 1e-3, 1)), probe(wrong), probe(EXACT), "O0")
    assert (check.passed, check.where) == (False, "layer2")


def test_a_gradient_that_is_no_number_or_missing_is_found_and_one_that_is_zero_left_out() -> None:
    for bad in (math.nan, math.inf):
        wrong = dict(EXACT, layer1=EXACT["layer1"].clone())
        wrong["layer1"][3] = bad
        assert not judged(wrong).passed
    assert not judged({name: g for name, g in EXACT.items() if name != "layer0"}).passed
    zero = "bias before batch norm"  # but for rounding
    probes = [
        probe({**gradients, zero: torch.full((512,), value)})
        for gradients, value in (
            (noisy(EXACT, 1e-3, 1), 1e-9),
            (noisy(EXACT, 1e-3, 2), -3e-9),
            (EXACT, 1e-14),
        )
    ]
    assert check_gradients(*probes, "O0").passed


@pytest.mark.parametrize(
    ("baseline", "candidate", "exact", "wrong_at"),
    [
        ([2.0, 1.91, 1.8], [2.0, 1.87, 1.82], [2.0, 1.9, 1.8], None),
        ([2.0, 1.901, 1.801], [2.0, 1.9, 1.7], [2.0, 1.9, 1.8], "step 3"),
        ([2.0], [None], [2.0], "step 1"),
        ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], None),  # nothing to divide by
        ([0.0], [1e-9], [0.0], "step 1"),
    ],
)
def test_losses_may_err_as_far_as_the_baseline_does(
    baseline: list[float], candidate: list[float | None], exact: list[float], wrong_at: str | None
) -> None:
    check = check_losses(baseline, candidate, exact, "O0")
    assert check.passed == (wrong_at is None) and wrong_at in (None, check.where)


@pytest.mark.parametrize(
    "losses",
    [[9.0, 9.0, 9.0], [2.0, 1.9, 0.2], [None, 1.9, 1.8]],
    ids=["all of them", "the last", "no number"],
)
@pytest.mark.parametrize("level", ["O0", "O1"])
def test_a_wrong_baseline_or_a_wrong_reference_allows_nothing(
    losses: list[float | None], level: str
) -> None:
    exact = [2.0, 1.9, 1.8]
    for baseline, reference in ((losses, exact), (exact, losses)):
        parity = judge((baseline, baseline, reference), (probe(EXACT),) * 3, level)
        assert not parity.passed and "baseline" in [check.name for check in parity.failed]


@pytest.mark.parametrize("factor", [0.0, -1.0, 2.0])
@pytest.mark.parametrize("level", ["O0", "O1"])
def test_a_baseline_with_wrong_gradients_is_found(factor: float, level: str) -> None:
    wrong = {name: factor * gradient for name, gradient in EXACT.items()}
    assert not check_baseline([1.0], [1.0], probe(wrong), probe(EXACT), level).passed
    assert check_baseline([1.0], [1.0], probe(noisy(EXACT, 0.05, 1)), probe(EXACT), level).passed


def test_baseline_losses_of_exactly_0_are_nothing_to_divide_by() -> None:
    for loss, passed in ((1e-8, True), (0.5, False)):
        check = check_baseline([0.0, loss], [0.0, 0.0], probe(EXACT), probe(EXACT), "O0")
        assert check.passed == passed


def test_a_variant_that_diverged_is_named_with_its_step() -> None:
    at = {"the baseline": None, "the candidate": {"step": 30, "rank": 1}}
    parity = judge(SAME_LOSSES, (probe(EXACT),) * 3, "O0", diverged=at)
    assert [check.where for check in parity.failed] == ["the candidate from step 30 on rank 1 on"]
    assert judge(SAME_LOSSES, (probe(EXACT),) * 3, "O0", diverged=dict.fromkeys(at)).passed


def test_half_precision_against_fp32_may_have_its_noise_and_no_wrong_direction() -> None:
    for noise, same_precision, passed in (
        (0.2, True, False),
        (0.2, False, True),
        (0.9, False, False),
    ):
        probes = (probe(noisy(EXACT, 1e-4, 1)), probe(noisy(EXACT, noise, 2)), probe(EXACT))
        assert check_gradients(*probes, "O1", same_precision=same_precision).passed == passed


# --------------------------------------------------------------------------------------------------
# Flips: a few parameters off on one batch


def flipped(batches: list[int], names: list[str], off: float = 0.05) -> dict:
    """Return a probe of four batches in which these parameters are off on these batches."""
    return probe_of(
        *(
            {
                name: gradient * (1 + off) if batch in batches and name in names else gradient
                for name, gradient in noisy(EXACT, 1e-6, batch).items()
            }
            for batch in range(4)
        )
    )


@pytest.mark.parametrize("batches", [[0], [2], [0, 3]])
def test_a_flip_on_some_batches_is_cleared_by_the_others(batches: list[int]) -> None:
    probes = (flipped([], []), flipped(batches, ["layer1", "layer2"]), probe(EXACT, 4))
    scale = check_gradient_scale(*probes, "O0")
    assert check_gradients(*probes, "O0").passed and scale.passed
    assert "2 parameter(s) off on some batches" in scale.where


@pytest.mark.parametrize(
    ("batches", "names"),
    [([0, 1, 2, 3], ["layer2"]), ([0, 1, 2], ["layer2"]), ([0], list(EXACT))],
    ids=["always", "on most batches", "all parameters on the first batch"],
)
@pytest.mark.parametrize("off", [0.02, 0.2])
def test_what_is_off_on_most_batches_or_everywhere_on_one_is_no_flip(
    batches: list[int], names: list[str], off: float
) -> None:
    probes = (flipped([], []), flipped(batches, names, off), probe(EXACT, 4))
    assert not check_gradient_scale(*probes, "O0").passed


# --------------------------------------------------------------------------------------------------
# Second runs


def test_where_a_second_plain_run_fails_too_rounding_explains_it() -> None:
    baseline, exact = probe(noisy(EXACT, 1e-3, 1), 4), probe(EXACT, 4)
    near, far = (probe(noisy(EXACT, noise, 2), 4) for noise in (1e-3, 0.2))
    wrong = probe({name: 1.3 * gradient for name, gradient in EXACT.items()}, 4)
    for second_loss, one, second, explained in (
        (1.0, baseline, near, False),
        (1.0, baseline, far, True),
        (1.1, baseline, near, True),
        (1.0, wrong, wrong, False),  # wrong both times
    ):
        losses = ([1.0], [second_loss], [1.0])
        assert rounding_explains(losses, (one, second, exact), "O0") == explained


def curve(*parts: tuple[int, float]) -> list[float]:
    """Return a falling curve of 40 steps, times a factor from a step on."""
    losses = [2.0 * 0.97**step for step in range(40)]
    return [
        loss * next((f for at, f in reversed(parts) if step >= at), 1.0)
        for step, loss in enumerate(losses, 1)
    ]


NONE: list[list[float]] = []
WRONG, ROUNDING = curve((12, 1.01)), curve((5, 1.001), (20, 1.004))
NEAR, FAR, APART = curve((5, 1.001)), curve((5, 1.01), (20, 0.99)), curve((5, 1.02), (20, 0.98))
# name: candidate, level, further plain runs, the candidate's, whether it passes, where
CURVES: dict[str, tuple[list[float], str, list[list[float]], list[list[float]], bool, str]] = {
    "near in fp32": (curve((12, 1.0004)), "O0", NONE, NONE, True, ""),
    "near in half precision": (curve((12, 1.002)), "O1", NONE, NONE, True, ""),
    "as far as rounding": (curve((5, 1.002), (20, 1.01)), "O0", [ROUNDING] * 4, NONE, True, ""),
    "further than rounding": (WRONG, "O0", [ROUNDING] * 4, [WRONG] * 4, False, "step 12"),
    "further in one of two runs": (
        *(WRONG, "O0", [curve()] * 4, [curve()] * 4, True),
        "in one of two runs from step 12 on, by chance",
    ),
    "as far as the fourth plain run": (APART, "O0", [NEAR] * 3 + [FAR], [APART] * 4, True, ""),
    "further than four plain runs": (APART, "O0", [NEAR] * 4, [APART] * 4, False, "step "),
}


@pytest.mark.parametrize("name", CURVES)
def test_curves_may_part_as_far_as_rounding_explains_and_no_run_is_asked_in_vain(name: str) -> None:
    candidate, level, plain, again, passed, where = CURVES[name]
    runs = plain.__getitem__, again.__getitem__  # of what is not there, an error
    check = check_curves(curve(), candidate, level, *runs)
    assert check.passed == passed and where in check.where


def test_a_curve_that_parts_has_the_distance_of_the_plain_run_beside_its_own() -> None:
    check = check_curves(curve(), WRONG, "O0", lambda move: ROUNDING, lambda move: WRONG)
    assert check.baselines == pytest.approx(0.001 * curve()[4])


def test_a_resnet50_whose_plain_runs_part_as_far_is_the_same_training() -> None:
    # ResNet-50 in fp32 on a processor with AVX2; the first two plain runs happen to lie together.
    plain = (
        (6.99920, 5.39393, 4.11578, 2.31221, 1.79649, 1.71846, 1.46309, 1.45042),
        (6.99920, 5.39393, 4.11579, 2.31191, 1.79711, 1.72219, 1.46391, 1.43436),
        (6.99920, 5.39436, 4.11005, 2.29979, 1.75349, 1.69918, 1.46057, 1.34376),
        (6.99920, 5.39339, 4.12108, 2.31665, 1.76676, 1.73157, 1.48732, 1.38707),
        (6.99920, 5.39339, 4.12108, 2.31665, 1.76676, 1.73157, 1.48732, 1.38707),
    )
    ours = (6.99920, 5.39390, 4.11478, 2.30203, 1.79761, 1.69330, 1.44398, 1.38669)
    again = (lambda move: plain[1 + move], lambda move: ours)
    assert check_curves(plain[0], ours, "O0", *again).passed
    two = check_curves(plain[0], ours, "O0", lambda move: plain[1], lambda move: ours)
    assert (two.passed, two.where) == (False, "step 8")


def test_across_precisions_the_candidates_own_rounding_counts() -> None:
    half, wrong = curve((5, 1.01)), curve((5, 1.01), (20, 1.3))
    for candidate, again, passed in ((half, curve((5, 0.99)), True), (wrong, wrong, False)):
        check = check_curves(
            *(curve(), candidate, "O1", NONE.__getitem__, lambda move, curve=again: curve),
            same_precision=False,
        )
        assert check.passed == passed

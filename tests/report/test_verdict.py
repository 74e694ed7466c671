"""The verdict in one line, for every outcome, and what stands below it."""

from __future__ import annotations

import dataclasses

import pytest
from made_comparison import FASTER, NO_DIFFERENCE, SLOWER, changed, comparison

from gallery_lib.measure.comparison.result import Check, Comparison, Parity
from gallery_lib.report import plots, tables, verdict
from gallery_lib.system.machine_load import MachineLoad, Others

QUIET = MachineLoad(
    2, [0.3, 2.1], Others(0.05, "sshd", 0.04), Others(0.1, "sshd", 0.1), 0.001, {"baseline": 0.04}
)


def at_99_percent(found: Comparison) -> Comparison:
    return dataclasses.replace(found, confidence=0.99)


def test_a_gain_is_said_with_interval_precision_parity_and_break_even() -> None:
    assert verdict.one_line(at_99_percent(comparison(FASTER, 406))) == (
        "resnet50: 2.00× as fast as PyTorch eager in fp32 (99 % interval 1.90 to 2.10), same "
        "training (parity passed), "
        "start-up paid for after 406 steps (1.7 min)."
    )


def test_no_measurable_difference_has_no_break_even() -> None:
    found = at_99_percent(comparison(NO_DIFFERENCE, None))
    assert verdict.one_line(found) == (
        "resnet50: no measurable difference from PyTorch eager in fp32 (1.18×, 99 % interval "
        "0.90 to 1.80), same training (parity passed)."
    )
    assert (
        verdict.break_even_line(found)
        == "There is no break-even: there is no measurable difference between the steps of the two."
    )


def test_a_loss_is_called_slower() -> None:
    said = verdict.one_line(at_99_percent(comparison(SLOWER, None)))
    assert said.startswith(
        "resnet50: 0.80× as fast as PyTorch eager in fp32 (99 % interval 0.70 to 0.90), so "
        "slower, same training"
    )
    assert "not shorter" in verdict.break_even_line(comparison(SLOWER, None))


def test_what_is_not_comparable_names_the_check_that_failed() -> None:
    assert verdict.one_line(comparison(None, None)) == (
        "resnet50: not comparable with PyTorch eager in fp32, since it does not compute the same "
        "training (losses: 0.500 where 0.100 is "
        "allowed, step 2), so no speed-up is given."
    )
    assert "no speed-up" in verdict.break_even_line(comparison(None, None))


def test_training_that_parts_later_and_sizes_too_small_to_judge_have_verdicts_of_their_own() -> (
    None
):
    passed = Check("losses", True, 0.01, 0.1, "step 2")
    parted = Parity(False, [passed, Check("all losses", False, 0.0132, 0.0012, "step 12", 4e-4)])
    found = dataclasses.replace(comparison(None, None), parity=parted)
    assert verdict.one_line(found) == (
        "resnet50: same at first, then not: its loss parts from that of PyTorch eager in fp32 at "
        "step 12 (0.0132 apart where 0.00120 is allowed), so no speed-up is given."
    )
    assert parted.verdict == "same at first, then not"
    small = Parity(False, [Check("losses", False, 0.5, 0.1, "step 2")], batch_to_take=16)
    said = verdict.one_line(dataclasses.replace(found, parity=small))
    assert said.startswith("resnet50: too small to judge") and "batch size of 16 or more" in said
    assert small.verdict == "too small to judge"


def test_a_start_up_that_is_not_longer_is_said() -> None:
    assert verdict.one_line(comparison(FASTER, 0)).endswith("its start-up is no longer.")
    assert (
        verdict.break_even_line(comparison(FASTER, 0)) == "Break-even: its start-up is no longer."
    )


def test_precision_processes_and_other_variants_are_named() -> None:
    half = changed(
        comparison(FASTER, 40), config={"amp_level": "O1", "amp_dtype": "auto"}, world_size=2
    )
    assert verdict.one_line(half).startswith(
        "resnet50 on 2 processes: 2.00× as fast as PyTorch eager in bf16 autocast (interval 1.90"
    )
    on_gpu = changed(half, environment={"device": "2 × A GPU"})
    # Which of the two dtypes autocast chose is not recorded.
    assert "in autocast (" in verdict.one_line(on_gpu)
    fp16 = changed(on_gpu, config={"amp_dtype": "fp16"})
    assert "in fp16 autocast (" in verdict.one_line(fp16)
    names = dict(zip(("plain", "tuned"), comparison(FASTER, 40).variants.values(), strict=True))
    assert "as fast as plain in fp32" in verdict.one_line(
        dataclasses.replace(comparison(FASTER, 40), variants=names)
    )


def test_a_task_of_a_file_is_named_without_its_folder() -> None:
    assert verdict.one_line(
        dataclasses.replace(comparison(FASTER, 40), task="/somewhere/long/task.py:TASK")
    ).startswith("task.py:TASK: 2.00×")


@pytest.mark.parametrize(
    ("data", "config", "said"),
    [
        ({"input": "192×128 pixels"}, {"image_size": 128}, "192×128 pixels"),
        ({"input": "32 frames"}, {"image_size": None, "sequence_length": 32}, "32 frames"),
        ({}, {"image_size": 48}, "images 48 pixels high"),
        ({}, {"image_size": None, "sequence_length": 32}, "32 tokens or frames"),
        ({}, {"image_size": None}, ""),
    ],
)
def test_sizes_have_units_also_of_runs_that_did_not_record_them(
    data: dict, config: dict, said: str
) -> None:
    run = changed(comparison(FASTER, 40), data=data, config=config).baseline
    assert verdict.input_size(run) == said
    assert verdict.batch(run) == ", ".join(filter(None, ["batch size 16", said]))


# --------------------------------------------------------------------------------------------------
# A busy machine


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (
            {"turns": Others(1.2, "cc1plus", 0.9)},
            "other processes took 1.2 of 2 cores while steps were measured, most of all "
            "`cc1plus` (0.9)",
        ),
        (
            {"turns": Others(0.6, "", 0.0)},
            "other processes took 0.6 of 2 cores while steps were measured",
        ),
        (
            {"start_up": Others(0.9, "rsync", 0.9)},
            "other processes took 0.9 of 2 cores during the start, most of all `rsync` (0.9)",
        ),
        ({"stolen": 0.07}, "the hypervisor gave 7% of the CPU time to other machines"),
        ({"load_average": [9.2, 8.1]}, "the load average was 9.2 before and 8.1 after, on 2 cores"),
        (
            {"drift": {"baseline": 0.22}},
            "steps of baseline took 22% longer in the last third of its turns than in the first",
        ),
        (
            {"drift": {"compiler-opt": -0.3}},
            "steps of compiler-opt took 30% less in the last third of its turns than in the first",
        ),
    ],
)
def test_a_busy_machine_is_named_in_one_line_before_the_details(seen: dict, said: str) -> None:
    found = dataclasses.replace(comparison(FASTER, 40), load=dataclasses.replace(QUIET, **seen))
    line = (
        f"The machine was busy: {said}; times are longer than the machine's own, so repeat it when "
        "it is quiet."
    )
    assert verdict.busy_line(found) == line
    assert tables.comparison_text(found).splitlines()[-3] == line
    assert line in tables.comparison_markdown(found).partition("<details>")[0]


@pytest.mark.parametrize("load", [QUIET, None, MachineLoad(2, None, None, None, None, {})])
def test_nothing_is_said_of_a_quiet_machine_or_of_one_that_does_not_tell(
    load: MachineLoad | None,
) -> None:
    found = dataclasses.replace(comparison(FASTER, 40), load=load)
    assert verdict.busy_line(found) == ""
    assert "busy" not in tables.comparison_text(found)


# --------------------------------------------------------------------------------------------------
# What to read it with


@pytest.mark.parametrize(
    ("amp_level", "isa", "said"),
    [("O1", ["avx2"], True), ("O1", ["avx2", "avx512_bf16"], False), ("O0", [], False)],
)
def test_a_baseline_that_emulates_bfloat16_is_to_be_read_with_care(
    amp_level: str, isa: list[str], said: bool
) -> None:
    found = changed(
        comparison(FASTER, 3), config={"amp_level": amp_level}, environment={"isa": isa}
    )
    for text in (
        tables.comparison_text(found),
        tables.comparison_markdown(found).partition("<details>")[0],
    ):
        assert ("eager fp32 (O0) would be faster" in text) == said


def with_check(check: Check) -> Comparison:
    return dataclasses.replace(comparison(FASTER, 40), parity=Parity(check.passed, [check]))


def test_why_a_large_difference_of_gradients_is_fine_stands_beside_it() -> None:
    check = Check("gradients", True, 0.26, 0.75, "layer1.weight", 0.217)
    for text in (
        tables.comparison_text(with_check(check)),
        tables.comparison_markdown(with_check(check)),
    ):
        assert (
            "relative to its length: 0 is the same, 1 is as far off as a gradient of zeros" in text
        )
        assert (
            "The baseline itself is 0.217 off there, by rounding alone. So the limit is three "
            "times that and a tolerance" in text
        )
        assert "0.260 is within what rounding in another order explains." in text


def test_a_check_is_explained_without_figures_that_it_does_not_have() -> None:
    assert "The baseline itself" not in verdict.meaning_of(
        Check("gradient scale", True, 0.001, 0.004, "x")
    )
    failed = verdict.meaning_of(Check("losses", False, float("inf"), 0.1, "step 1", 0.01))
    assert "not finite is more than rounding explains" in failed
    assert "no more than the baseline's own" in verdict.meaning_of(
        Check("losses", True, 0.01, 0.1, "step 1", 0.02)
    )


def test_the_picture_of_break_even_says_the_same() -> None:
    found = comparison(FASTER, 1500)
    assert "start-up paid for after 1,500 steps (6.2 min)" in verdict.break_even_line(found)
    assert plots.break_even(found).title == "The longer start-up is paid for after 1,500 steps"

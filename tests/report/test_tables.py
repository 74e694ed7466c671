"""The verdict in one line, for every outcome, and the tables below it."""

import dataclasses
from typing import Any

import pytest
from made_comparison import FASTER, NO_DIFFERENCE, SLOWER, changed, comparison

from gallery_lib.console.text import number, rate, seconds
from gallery_lib.measure.comparison.result import OTHER_CLOCKS, Check, Comparison, Parity
from gallery_lib.report import tables, verdict
from gallery_lib.report.tables import folded, unfolded
from gallery_lib.system.gpu import GpuState
from gallery_lib.system.machine_load import MachineLoad

QUIET = MachineLoad(0.001, 0.05)
GAIN = dataclasses.replace(comparison(FASTER, 406), confidence=0.99)
SAME = dataclasses.replace(comparison(NO_DIFFERENCE, None), confidence=0.99)
PARTED = [
    Check("losses", True, 0.01, 0.1, "step 2"),
    Check("all losses", False, 0.0132, 0.0012, "step 12", 4e-4),
]
TOO_SMALL = Parity(False, [Check("losses", False, 0.5, 0.1, "step 2")], batch_to_take=16)
WRONG = comparison(None, None)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            GAIN,
            "2.00× as fast as PyTorch eager in fp32 (99 % interval 1.90 to 2.10), same training "
            "(parity passed), start-up paid for after 406 steps (1.7 min).",
        ),
        (
            SAME,
            "no measurable difference from PyTorch eager in fp32 (1.18×, 99 % interval 0.90 to "
            "1.80), same training (parity passed).",
        ),
        (
            comparison(SLOWER, None),
            "0.80× as fast as PyTorch eager in fp32 (99 % interval 0.70 to 0.90), so slower, same "
            "training (parity passed).",
        ),
        (
            WRONG,
            "not comparable with PyTorch eager in fp32, since it does not compute the same "
            "training (losses: 0.500 where 0.100 is allowed, step 2), so no speed-up is given.",
        ),
        (
            dataclasses.replace(WRONG, parity=Parity(False, PARTED)),
            "same at first, then not: its loss parts from that of PyTorch eager in fp32 at step "
            "12 (0.0132 apart where 0.00120 is allowed), so no speed-up is given.",
        ),
        (
            dataclasses.replace(WRONG, parity=TOO_SMALL),
            "too small to judge: a second run of PyTorch eager in fp32, from weights that are "
            "moved by a rounding, does not pass either (losses: 0.500 where 0.100 is allowed, "
            "step 2). Take a batch size of 16 or more, so no speed-up is given.",
        ),
        (
            comparison(FASTER, 0),
            "2.00× as fast as PyTorch eager in fp32 (99 % interval 1.90 to 2.10), same training "
            "(parity passed), its start-up is no longer.",
        ),
    ],
)
def test_the_verdict_is_one_line_with_interval_parity_and_break_even(
    found: Comparison, said: str
) -> None:
    assert verdict.one_line(found) == f"resnet50: {said}"
    *_, paid = said.partition("(parity passed), ")
    break_even = f"Break-even: {paid}" if paid else "There is no break-even."
    assert verdict.break_even_line(found) == break_even


def test_other_clocks_of_the_gpu_are_named_in_place_of_a_speed_up() -> None:
    fast, slow = GpuState(1980, 2619, 610.0, []), GpuState(1755, 2619, 700.0, ["power cap"])
    on_gpu = changed(GAIN, environment={"device": "1 × A GPU"}, gpu=fast)
    names, runs = zip(*on_gpu.variants.items(), strict=True)
    runs = (runs[0], dataclasses.replace(runs[1], gpu=slow))
    parted = dataclasses.replace(
        on_gpu, variants=dict(zip(names, runs, strict=True)), speedup=None, verdict=OTHER_CLOCKS
    )
    said = (
        "resnet50: at other GPU clocks (1,980 MHz, memory at 2,619 MHz, 610 W for baseline and "
        "1,755 MHz, memory at 2,619 MHz, 700 W, slowed by power cap for compiler-opt; at most 3% "
        "apart is comparable), so no speed-up is given."
    )
    assert tables.comparison_text(parted).splitlines()[-3] == said
    shown = {row[0]: row[1:] for row in tables.measured_rows(on_gpu.variants, {})}
    assert shown["GPU at work"] == [str(fast)] * 2
    assert shown["sustained, with waits for data"] == ["not measured"] * 2
    assert "GPU at work" not in tables.comparison_text(GAIN)
    assert "peak memory, device" in shown  # of a run that does not say since when
    late = changed(on_gpu, peak_memory_bytes={"host": 1, "device": 2**30, "device_reserved": 2**31})
    shown = {row[0]: row[1:] for row in tables.measured_rows(late.variants, {})}
    assert shown["peak memory, device, after warm-up"] == ["1.00 GiB"] * 2


def test_precision_processes_tasks_other_variants_and_sizes_are_named() -> None:
    half = changed(GAIN, config={"amp_level": "O1", "amp_dtype": "auto"}, world_size=2)
    on_gpu = changed(half, environment={"device": "2 × A GPU"})
    names = dict(zip(("plain", "tuned"), GAIN.variants.values(), strict=True))
    own = dataclasses.replace(GAIN, variants=names, task="/somewhere/long/task.py:TASK")
    for found, said in (
        (half, "resnet50 on 2 processes: 2.00× as fast as PyTorch eager in bf16 autocast (99 %"),
        (on_gpu, " in autocast ("),  # which of the two dtypes autocast chose is not recorded
        (changed(on_gpu, config={"amp_dtype": "fp16"}), " in fp16 autocast ("),
        (own, "task.py:TASK: 2.00× as fast as plain in fp32"),
    ):
        assert said in verdict.one_line(found)
    sized = changed(GAIN, data={"input": "192×128 pixels"})
    assert verdict.batch(sized.baseline) == "batch size 16, 192×128 pixels"
    assert verdict.batch(changed(GAIN, data={}).baseline) == "batch size 16"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"waited": 0.5}, "threads with work to do waited for a core 50% of the time"),
        ({"stolen": 0.07}, "the hypervisor gave 7% of the CPU time to other machines"),
    ],
)
def test_a_busy_machine_is_named_in_one_line_before_the_details(
    seen: dict[str, Any], said: str
) -> None:
    found = dataclasses.replace(GAIN, load=dataclasses.replace(QUIET, **seen))
    line = verdict.lines(found)[1]
    assert line.startswith(f"The machine was busy: {said}; times are longer")
    assert tables.comparison_text(found).splitlines()[-3] == line
    assert line in tables.comparison_markdown(found).partition("<details>")[0]
    assert "busy" not in tables.comparison_text(dataclasses.replace(found, load=QUIET))


@pytest.mark.parametrize(
    ("amp_level", "isa", "said"),
    [("O1", ["avx2"], True), ("O1", ["avx2", "avx512_bf16"], False), ("O0", [], False)],
)
def test_a_baseline_that_emulates_bfloat16_is_to_be_read_with_care(
    amp_level: str, isa: list[str], said: bool
) -> None:
    found = changed(GAIN, config={"amp_level": amp_level}, environment={"isa": isa})
    shown = tables.comparison_markdown(found).partition("<details>")[0]
    for text in (tables.comparison_text(found), shown):
        assert ("eager fp32 (O0) would be faster" in text) == said


# --------------------------------------------------------------------------------------------------
# Tables


def test_a_check_has_its_limit_and_the_baselines_own_distance() -> None:
    checks = [Check("losses", False, None, 0.1, "step 1", 0.01), *PARTED[1:]]
    wrong = dataclasses.replace(WRONG, parity=Parity(False, checks))
    first, second = tables.parity_rows(wrong)[1:]
    assert first[:6] == ["losses", "not finite", "0.0100", "0.100", "step 1", "FAILED"]
    assert second[:4] == ["all losses", "0.0132", "0.0004", "0.00120"]
    assert first[6].startswith("How far a loss of the candidate is from that of the same training")


def test_figures_have_three_digits_thousands_separators_and_units() -> None:
    values = (0.0, 0.25, 9.999, 38.07, 24576.0, -0.5, 0.00123, 0.000123, 999.9, float("inf"))
    said = "0 0.250 10.0 38.1 24,600 -0.500 0.00123 0.00012 1,000 not finite"
    assert " ".join(map(number, values)) == said
    units = [seconds(0.0123), seconds(1.234), rate(5333.3)]
    assert units == ["12.3 ms", "1.23 s", "5,330 samples/s"]


def test_a_slow_loader_is_named_with_both_steps_where_the_median_hides_it() -> None:
    sustained = {"steps": 90, "step_seconds": 2.0, "input_seconds": 1.5}
    found = changed(
        GAIN,
        sustained={**sustained, "steady_input_seconds": 0.01},
        samples_per_second={"sustained": 8.0},
    )
    for text in (tables.comparison_text(found), tables.results_text(found.baseline)):
        assert "sustained, with waits for data" in text and "8.00 samples/s, 2.00 s" in text
    said = verdict.lines(found)[1]
    assert "baseline 2.00 s (500 ms), compiler-opt 2.00 s (250 ms)" in said
    hardly = changed(found, sustained={"step_seconds": 0.51, "input_seconds": 0.02})
    assert "sustained" not in tables.results_text(hardly.baseline)
    busy = changed(found, sustained={"step_seconds": 2.0, "input_seconds": 0.1})
    assert "loader" not in tables.comparison_text(busy)


def test_the_verdict_comes_last_on_a_terminal_and_first_in_a_notebook() -> None:
    text, markdown = tables.comparison_text(GAIN), tables.comparison_markdown(GAIN)
    assert text.splitlines()[-3].startswith("resnet50: 2.00× as fast as PyTorch eager in fp32")
    before, _, below = markdown.partition("<details>")
    assert before.startswith("**resnet50: 2.00× as fast as PyTorch eager in fp32")
    for part in ("32.0 samples/s", "no GPU", "held-out top1 (chance 0.100)", "not finite"):
        assert part in text and part in below and part not in before


def test_folded_parts_are_unfolded_in_the_plain_form() -> None:
    text = "\n\n".join(["Before.", folded("More", "a\n\nb"), folded("Yet more", "c")])
    assert text.count("<details>") == text.count("</details>") == 2
    assert unfolded(text) == "Before.\n\nMore:\n\na\n\nb\n\nYet more:\n\nc"


def test_without_parity_no_speedup_appears_anywhere() -> None:
    for text in (tables.comparison_text(WRONG), tables.comparison_markdown(WRONG)):
        assert "not comparable" in text and "FAILED" in text and "as fast as" not in text


def test_processes_have_an_efficiency_unless_they_share_cores() -> None:
    one = changed(GAIN, samples_per_second={"global": 64.0})
    two = {"samples_per_second": {"global": 60.0}, "config": {"batch_size": 8}}
    said = tables.scaling_markdown(one, changed(one, world_size=2, **two))
    assert "efficiency" not in said and "%" not in said and "| 0.94× |" in said
    assert "2 share the same cores (16 samples a step alone, 8 a process together)" in said
    on_gpu = changed(one, environment={"device": "2 × A GPU"})
    several = changed(on_gpu, world_size=2, samples_per_second={"global": 120.0})
    said = tables.scaling_markdown(on_gpu, several)
    assert "94%" in said and "scaling efficiency" in said
    waits = changed(several, samples_per_second={"global": 120.0, "sustained": 60.0})
    assert tables.scaling_markdown(on_gpu, waits) == said  # there is one kind of rate for all
    alone = changed(on_gpu, samples_per_second={"global": 64.0, "sustained": 60.0})
    assert "50%" in tables.scaling_markdown(alone, waits)

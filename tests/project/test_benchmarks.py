"""The benchmarks run, once each with the least to measure; files and pages hold their tables."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster.conftest import why_no_lab
from refusal import check_refused_command

from gallery_lib.comm.tuner import PLAIN
from gallery_lib.data.images.mock_imagenet import MockSpec, generate
from gallery_lib.system.processes import search_path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TINY_TASK = BENCHMARKS.parent / "tests" / "helpers" / "tiny_task.py"
Module = Callable[[str], Any]
Command = Callable[..., subprocess.CompletedProcess[str]]
SHORT = (
    "startup.py --only tts_angular --steps=12",
    "startup.py --empty --only tts_angular --steps=12",
    "checkpoints.py --tasks=resnet50 --rounds=2 --block_steps=2 --batch_size=2",
    "loader.py --workers=1 --rounds=2 --batches=1",
)


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Module:
    """Return a file of benchmarks/ as a module by its name, which a folder of tests may share."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> Any:
        path = BENCHMARKS / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look for their module
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs a script of benchmarks/ with these words to a good end."""
    monkeypatch.setenv("PYTHONPATH", search_path())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(
        script: str, *words: object, start: tuple[str, ...] = (), codes: tuple[int, ...] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, *start, str(BENCHMARKS / script), *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=560)
        assert done.returncode in codes, done.stdout + done.stderr
        return done

    return run


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("words", SHORT)
def test_a_benchmark_measures_and_its_file_has_the_table(
    words: str, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "figures.json"
    done = command(*words.split(), f"--out={out}", codes=(0, 1))
    assert "Traceback" not in done.stderr, done.stderr
    written = json.loads(out.read_text())
    assert {"date", "command", "environment", "shown"} <= set(written)
    header, row = written["shown"]["table"]
    assert len(header) == len(row) and header[0] in done.stdout
    if words.startswith("checkpoints.py"):
        task = written["tasks"]["resnet50"]
        assert [len(task["step_seconds"][form]) for form in ("without", "with")] == [2, 2]
        # Weights and two states of AdamW: 25.6 million values each.
        assert task["checkpoint_bytes"] == pytest.approx(3 * 25.6e6 * 4, rel=0.02)


@pytest.mark.thorough
@pytest.mark.slow
def test_an_option_is_measured_in_turns(command: Command) -> None:
    option, sizes = "compiler.enabled", ("--image_size=32", "--batch_size=2")
    of_option = (option, "--model=resnet18", *sizes, "--rounds=2", "--block_steps=2")
    without, with_it, *lines = command("one_option.py", *of_option).stdout.splitlines()
    assert without.startswith("without: ") and "inductor" not in without
    assert with_it.startswith("with: ") and "inductor" in with_it
    for line, what in zip(lines, ("seconds", "processor seconds"), strict=True):
        medians = rf"resnet18, {what} of a step: without \d+\.\d+, with \d+\.\d+"
        ratio = r"\d+\.\d\d× \(\d+\.\d\d to \d+\.\d\d\)"
        assert re.fullmatch(rf"{medians}; {option} {ratio}", line), line


def tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.thorough
@pytest.mark.slow
def test_kernels_and_eager_do_the_same_work(benchmark_module: Module) -> None:
    for name, build in benchmark_module("kernels").CASES.items():
        case = build(torch.device("cpu"), True)
        tolerance = 3e-2 if name.startswith(("batch_norm", "cross", "prepare")) else 1e-4
        # Where bf16 rounds once or twice on the way to 0, ReLU passes a gradient on one side only.
        # Then a channel's sums differ.
        alike = 0.95 if name.startswith("batch_norm") else 1.0
        for _ in range(2):
            for ours, eager in zip(tensors(case.ours()), tensors(case.eager()), strict=True):
                same = torch.isclose(ours.double(), eager.double(), rtol=tolerance, atol=tolerance)
                assert same.double().mean() >= alike, name


@pytest.mark.slow
def test_a_planted_fault_is_found(benchmark_module: Module) -> None:
    trust = benchmark_module("trust")
    found = [trust.run_comparison("wrong gradient, O0", 0, 4)]
    assert found[0]["verdict"] == "not comparable"
    rows = {row[0]: row for row in trust.rows_of(found)}
    assert rows["wrong gradient, O0"][2:4] == ["1 of 1", "–"]
    assert rows["same"][-1] == "not finished"


def test_the_planted_tasks_differ_from_the_right_ones_in_the_fault_alone(
    benchmark_module: Module,
) -> None:
    planted = benchmark_module("planted")
    model = planted.WRONG_O1.build_model()
    right = planted.tasks.get("resnet50").build_model()
    assert [p.shape for p in model.parameters()] == [p.shape for p in right.parameters()]
    hooked = [name for name, p in model.named_parameters() if p._backward_hooks]
    assert hooked == [planted.WRONG_PARAMETER]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("one_option.py", "memory.layout"), "`memory.layout` is no option that is on or off"),
        (("startup.py", "--only=resnet51"), "resnet51"),
        (("startup.py", "--out", "TMP/taken/figures.json"), "cannot be made"),
        (("loader.py", "--rounds=0"), "rounds"),
        (("two_checkouts.py", "--before=/no/such"), "--before must be a checkout"),
        (("kernels.py",), "CUDA device"),
        (("on_a_gpu.py", "--out=TMP/found"), "CUDA device"),
        (("gpu_steps.py", "steps"), "CUDA device"),
        (("network.py", "run", "missing.json"), "missing.json"),
        (("network.py", "record", "--model", "resnet51", "--out", "x.json"), "`resnet50`"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_bad_input_ends_with_2_before_anything_is_measured(
    benchmark_module: Module,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: tuple[str, ...],
    said: str,
) -> None:
    (tmp_path / "taken").write_text("a file, and no folder")
    script = benchmark_module(words[0].removesuffix(".py"))
    monkeypatch.setattr(sys, "argv", [word.replace("TMP", str(tmp_path)) for word in words])
    try:
        body = getattr(script, "main", None) or script.run
        code = script.figures_file.exit_code(body)
    except SystemExit as ended:  # of argparse
        code = ended.code
    shown = capsys.readouterr()
    check_refused_command(code, shown.err.splitlines()[-1], said)
    assert shown.out == "" and "Traceback" not in shown.err


@pytest.mark.thorough
@pytest.mark.slow
def test_real_training_in_turns_prints_step_times_by_percentile_and_writes_figures(
    command: Command, tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"

    def run(processes: int, *options: str) -> str:
        torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}")
        short = ("--model", f"{TINY_TASK}:TASK", "--rounds=4", "--block_steps=1")
        return command("network.py", "train", *short, *options, start=torchrun).stdout

    said = run(2, "--streams=2", "--bucket_views", "--early_steps", f"--out={figures}")
    rate = r"[\d.,]+ samples/s"
    line = rf"  2 CPUs -- 1M/2C:  p50:  \d+\.\d{{3}}s {rate}  p75: .*\(all devices, p50: {rate}\)"
    assert re.search(line, said), said
    found = json.loads(figures.read_text())
    assert set(found["ways"]) == {PLAIN, "accelerated"} and found["early_steps"]
    assert found["ways"]["accelerated"]["speedup"]["low"] > 0
    alone = run(1)
    assert "nobody to share gradients with" in alone and "1M/1C:" in alone


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.cluster
def test_what_is_recorded_is_replayed_on_a_lab(command: Command, tmp_path: Path) -> None:
    if reason := why_no_lab():
        pytest.skip(reason)
    timeline, figures = tmp_path / "tiny.json", tmp_path / "figures.json"
    own = ("--model", f"{TINY_TASK}:TASK", "--workers=0", "--threads=1")
    command("network.py", "record", *own, "--out", timeline)
    short = ("--rounds=4", "--block_steps=1", "--rate=100mbit", "--stretch=2", "--only=views")
    done = command("network.py", "run", timeline, *short, "--out", figures)
    assert "time-dilated replay (stretch 2) on an emulated link of 100mbit" in done.stdout
    assert done.stdout.count("2 CPUs -- 2M/2C:  p50:  ") == 2
    found = json.loads(figures.read_text())
    assert set(found["ways"]) == {PLAIN, "views"}
    assert found["what_it_is"].startswith("Time-dilated replay on an emulated link")


@pytest.mark.thorough
@pytest.mark.slow
def test_both_example_scripts_train_the_same(tmp_path: Path) -> None:
    generate(tmp_path / "images", MockSpec(3, 24, 2), progress=False)
    sizes = ("--steps=2", "--batch_size=8", "--image_size=64")
    losses = []
    for name in ("plain", "accelerated"):
        script, log = BENCHMARKS.parent / "docs" / "examples" / f"{name}.py", tmp_path / name
        data = f"--data={tmp_path}/images/train"
        subprocess.run([sys.executable, script, *sizes, data, f"--log={log}"], check=True)
        losses.append(json.loads(log.read_text())["losses"])
    plain, accelerated = losses
    assert len(plain) == 2 and accelerated == pytest.approx(plain, rel=2e-3)


# --------------------------------------------------------------------------------------------------
# Pages of benchmarks/results/


ABSOLUTE = re.compile(r"(^|[ =:'\"])(/|~|[A-Z]:\\)")


def test_the_committed_pages_are_up_to_date(benchmark_module: Module) -> None:
    assert benchmark_module("pages").write(check=True) == []


def test_published_commands_name_no_place_of_one_machine() -> None:
    files = sorted((BENCHMARKS / "results").glob("*/*.json"))
    commands = {file.name: str(json.loads(file.read_text())["command"]) for file in files}
    assert len(files) > 10
    assert ABSOLUTE.search("gallery bench --out /home/me/bench")
    assert ABSOLUTE.search("gallery bench --out=/home/me/bench")
    assert not {name: text for name, text in commands.items() if ABSOLUTE.search(text)}


def test_links_of_every_page_lead_somewhere() -> None:
    for page in BENCHMARKS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page}: {target}"

"""A training begins uncompiled, and goes over when the compiler in the background is done."""

from __future__ import annotations

import copy
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from ranks import Ranks
from refusal import refused
from torch import Tensor, nn

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.compiler import background
from gallery_lib.config import Compiler
from gallery_lib.system.processes import search_path

SECONDS = 300.0


def in_background() -> Config:
    config = Config()
    config.compiler.background = True
    config.compiler.background_nice = 0  # beside other tests
    return config


def network() -> nn.Module:
    """Return a network of a width that no earlier run has compiled."""
    torch.manual_seed(0)
    width = 8 + secrets.randbelow(1000)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.GELU(), nn.Linear(width, 2))


class Training:
    """Steps of a model on one batch."""

    def __init__(self, model: nn.Module, config: Config) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.model, _, self.optimizer = accelerate(model, None, optimizer, config)
        self.inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.model(self.inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @property
    def compiler(self) -> str:
        return techniques(self.model)["compiler"]


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.05)


@pytest.fixture
def started() -> Callable[[], list[psutil.Process]]:
    """Return a function for the processes that this one has started during the test."""
    me = psutil.Process()
    before = me.children(recursive=True)
    return lambda: [child for child in me.children(recursive=True) if child not in before]


def working(*_: Any) -> str:
    """Stand for a compiler that takes long, in a process of its own."""
    subprocess.run(["sleep", "1000"], check=True)
    return "it is done"


def go_over() -> None:
    """Train until the run has gone over, and check it. This process has trained nothing before."""
    plain = network()
    ours = Training(copy.deepcopy(plain), in_background())
    losses: list[float] = []
    random_state = torch.get_rng_state()
    until(lambda: losses.append(ours.step()) or "uncompiled" in ours.compiler, SECONDS)
    before = len(losses) - 1
    assert f"the first {before} calls ran uncompiled" in ours.compiler
    losses += [ours.step() for _ in range(3)]
    assert torch.equal(torch.get_rng_state(), random_state)

    counts = torch._dynamo.utils.counters["aot_autograd"]
    assert counts["autograd_cache_hit"] == 1 and not counts["autograd_cache_miss"]

    config = Config()
    config.compiler.enabled = False
    eager = Training(plain, config)
    expected = [eager.step() for _ in losses]
    assert losses[:before] == expected[:before]
    assert losses[before:] == pytest.approx(expected[before:], rel=1e-4, abs=1e-6)
    assert not psutil.Process().children(recursive=True)
    print(f"right after {before} calls")


def compile_at_once_after_training() -> None:
    """Train a model before: autograd's engine cannot be forked then, so the compiler goes first."""
    first = Config()
    for config in (first, in_background()):
        training = Training(network(), config)
        until(lambda training=training: bool(training.step()) and "none:" not in training.compiler)
    assert "not in the background" in training.compiler
    print("right, compiled in the foreground")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("go_over", "goes over to compiled code after"),
        ("compile_at_once_after_training", "has trained before"),
    ],
)
def test_a_run_ends_compiled(function: str, said: str, checkout: Path) -> None:
    folders = [search_path(), str(checkout / "tests"), str(checkout / "tests" / "helpers")]
    done = subprocess.run(
        [sys.executable, "-c", f"from compiler import test_background as t; t.{function}()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("right"), done.stderr
    assert said in done.stderr


def test_a_compiler_that_fails_leaves_the_run_uncompiled(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    started: Callable[[], list[psutil.Process]],
) -> None:
    def fail(*_: Any) -> str:
        raise ValueError("planted\nmore")

    monkeypatch.setattr(background, "compile_model", fail)
    ours = Training(nn.Linear(4, 2), in_background())
    until(lambda: bool(ours.step()) and "failed" in ours.compiler)
    assert ours.compiler.startswith("none: ") and "(ValueError: planted)" in ours.compiler
    assert "Linear trains on uncompiled" in capfd.readouterr().err
    assert not started()


def test_the_compiler_ends_with_its_model_and_with_what_it_has_started(
    monkeypatch: pytest.MonkeyPatch, started: Callable[[], list[psutil.Process]]
) -> None:
    monkeypatch.setattr(background, "compile_model", working)
    ours = Training(nn.Linear(4, 2), in_background())
    ours.step()
    until(lambda: len(started()) == 2)
    background.end(ours.model)
    until(lambda: not started())
    ours.step()
    assert ours.compiler.startswith("none: ")


_SCRIPT = """
import psutil, time
from compiler.test_background import Training, background, in_background, nn, until, working
background.compile_model = working
training = Training(nn.Linear(4, 2), in_background())
training.step()
until(lambda: len(psutil.Process().children(recursive=True)) == 2)
print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_script_that_is_killed(number: signal.Signals, checkout: Path) -> None:
    folders = [search_path(), str(checkout / "tests"), str(checkout / "tests" / "helpers")]
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as script:
        assert script.stdout is not None
        children = [int(word) for word in script.stdout.readline().split()]
        assert len(children) == 2
        script.send_signal(number)
    until(lambda: not any(psutil.pid_exists(child) for child in children))


def test_an_evaluation_starts_no_compiler(started: Callable[[], list[psutil.Process]]) -> None:
    ours = Training(nn.Linear(4, 2), in_background())
    ours.model.eval()
    ours.model(ours.inputs)
    ours.model.train()
    with torch.no_grad():
        ours.model(ours.inputs)
    assert not started()


@pytest.mark.parametrize(
    ("options", "device", "reason"),
    [
        (Compiler(), "cuda", "CUDA cannot be forked"),
        (Compiler(backend="other"), "cpu", "`other` has no cache"),
        (Compiler(), "cpu", ""),
    ],
)
def test_where_the_compiler_cannot_work_in_the_background_a_reason_is_known(
    options: Compiler, device: str, reason: str
) -> None:
    found = background._reason_against(options, torch.device(device))
    assert reason in found and bool(reason) == bool(found)


def test_tuning_and_a_compiler_in_the_background_are_refused_together() -> None:
    config = in_background()
    config.tune.enabled = True
    with refused("background", "tune.enabled"):
        accelerate(nn.Linear(4, 2), None, config)


def test_calls_are_alike_where_the_same_code_serves_them() -> None:
    model = nn.Linear(4, 2)

    def kinds(inputs: Tensor, **options: Any) -> Any:
        return background._kinds(model, (inputs,), options)

    marked, longer = torch.ones(3, 4), torch.ones(5, 4)
    assert kinds(marked) != kinds(longer) and kinds(marked) == kinds(torch.zeros(3, 4))
    assert kinds(marked, mask=True) != kinds(marked, mask=False)
    for tensor in (marked, longer):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    assert kinds(marked) == kinds(longer)


@pytest.mark.slow
def test_two_processes_go_over_and_stay_together() -> None:
    with Ranks(processes=2, hosts=1) as ranks:
        first, second = ranks.call("background.losses", 8 + secrets.randbelow(1000))
    assert first["weights"] == second["weights"]
    for rank in (first, second):
        assert 0 < rank["uncompiled"] < len(rank["losses"])
        assert rank["losses"] == pytest.approx(rank["plain"], rel=1e-4, abs=1e-6)
    before = min(first["uncompiled"], second["uncompiled"])
    assert first["losses"][:before] == first["plain"][:before]

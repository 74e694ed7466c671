"""What holds for each task of the gallery: its size, that it learns, and data parallelism.

Two processes train as one does. That baseline and backend compute the same training is tested with
each task's notebook, which compares them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import two_processes
from small_tasks import LEARNING, MOVES, SMALL

import gallery_lib
from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.system import hardware
from gallery_lib.train.loop import evaluate, train
from gallery_lib.train.results import Results, read_results
from gallery_lib.train.session import Observer, Session

PARAMETERS = {
    "alexnet": 61_100_840,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "timm_vovnet": 22_600_296,
    "timm_vision_transformer": 22_050_664,
    "pytorch_unet": 17_267_458,
    "hf_Bart": 139_420_416,
    "hf_Bert": 109_514_298,
    "speech_transformer": 44_303_872 + 512 * 4233,
    "tts_angular": 9_381_890,
}
"""Numbers of parameters as published.

For the last two, they are sums over the layers that their papers give.
"""

LEARNING_IN_CI = ("hf_Bert", "resnet18")

every_task = pytest.mark.parametrize("name", tasks.names())


def test_the_gallery_has_the_eleven_tasks():
    assert set(tasks.names()) == set(PARAMETERS) == set(SMALL) == set(LEARNING) == set(MOVES)


@every_task
def test_a_model_has_the_parameters_of_its_paper_and_its_task_says_what_there_is_to_know(name):
    task = tasks.get(name)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in task.build_model().parameters() if p.requires_grad)
    assert parameters == PARAMETERS[name] == task.parameters
    assert task.name == name and task.flops_per_sample > 1e6
    assert task.activation_bytes_per_sample > 1e5
    assert task.quick and task.full
    assert (task.image_size is None) != (task.sequence_length is None)


class _Untrained(Observer):
    """Observer that takes the metrics before the first step."""

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        if step == 0:
            self.metrics = evaluate(session)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in LEARNING_IN_CI else [pytest.mark.thorough])
        for name in tasks.names()
    ],
)
def test_a_task_learns(name, tmp_path):
    untrained = _Untrained()
    more = {"threads": hardware.cores(), "run_dir": str(tmp_path), **LEARNING[name]}
    config = TrainConfig(model=name, amp_level="O0", **more)
    trained = train(config, untrained).metrics
    metric, amount = MOVES[name]
    gained = trained[metric] - untrained.metrics[metric]
    assert (gained > amount) if amount > 0 else (gained < amount), (
        f"{metric}: {untrained.metrics[metric]:.3f} → {trained[metric]:.3f}"
    )


GOLDEN_LOSSES = Path(__file__).parent / "golden_losses.json"
"""First losses of each task without dropout, seed 1, at twice the small batch.

With WRITE_GOLDEN_LOSSES=1 the test writes them anew.
"""
GOLDEN_TOLERANCE = 0.02
"""Relative difference: kernels of another processor or release round differently."""

OF_EACH_DOMAIN = ("resnet18", "pytorch_unet", "hf_Bert", "speech_transformer", "tts_angular")
"""Tasks with each loss and each kind of data; others share theirs with one of them."""
TWO_PROCESSES_TOLERANCE = 0.05
"""Relative difference of losses.

Batch norm takes its statistics, and a mean over tokens its count, per process.
"""


@pytest.fixture(scope="module")
def on_two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder with each task's run on two processes, and what these printed."""
    folder = two_processes.prepare(tmp_path_factory.mktemp("two"))
    script = Path(two_processes.__file__)
    root = Path(gallery_lib.__file__).parent.parent
    paths = {"PYTHONPATH": f"{root}:{script.parent}", "HF_HUB_OFFLINE": "1"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **paths}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, str(script), str(folder), *OF_EACH_DOMAIN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    return folder, done.stdout + done.stderr


@pytest.fixture(scope="module")
def on_one_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """Return a function that trains a task on one process, when it is first asked for.

    The run has the global batch of the two processes.
    """
    folder = two_processes.prepare(tmp_path_factory.mktemp("one"))

    @functools.cache
    def run(name: str) -> Results:
        sizes = {"batch_size": 2 * SMALL[name]["batch_size"], "threads": hardware.cores()}
        return train(dataclasses.replace(two_processes.config(name, folder), **sizes))

    return run


def losses(results: Results) -> list[float]:
    return [loss for _, loss in results.loss["curve"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EACH_DOMAIN)
def test_two_processes_train_as_one_does_with_the_same_global_batch(
    name, on_two_processes, on_one_process
):
    folder, printed = on_two_processes
    assert (folder / name / "results.json").exists(), printed[-5000:]
    two, one = read_results(folder / name), on_one_process(name)
    assert (two.world_size, one.world_size) == (2, 1)
    assert losses(two) == pytest.approx(losses(one), rel=TWO_PROCESSES_TOLERANCE)


@pytest.mark.thorough
@pytest.mark.slow
@every_task
def test_the_first_losses_are_those_on_record(name, on_one_process):
    golden = json.loads(GOLDEN_LOSSES.read_text()) if GOLDEN_LOSSES.exists() else {}
    if os.environ.get("WRITE_GOLDEN_LOSSES"):
        golden[name] = [round(loss, 4) for loss in losses(on_one_process(name))]
        GOLDEN_LOSSES.write_text(json.dumps(dict(sorted(golden.items())), indent=1) + "\n")
    assert losses(on_one_process(name)) == pytest.approx(golden[name], rel=GOLDEN_TOLERANCE)

"""What holds for each task: size, learning, data parallelism, memory; and how one is added.

Two processes train as one does. That baseline and backend compute the same training is tested with
each task's notebook, which compares them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import two_processes
from refusal import refused
from small_tasks import LEARNING, MOVES, SMALL

from gallery_lib import tasks
from gallery_lib.checkpoint.state import Parts
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.launcher.job import dry_run, launch
from gallery_lib.system import hardware
from gallery_lib.system.processes import search_path
from gallery_lib.tasks import memory_estimate
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
    trained = train(TrainConfig(model=name, amp_level="O0", **more), untrained).metrics
    metric, amount = MOVES[name]
    before, after = untrained.metrics[metric], trained[metric]
    assert abs(after - before) > abs(amount) and (after > before) == (amount > 0)


# First losses of each task without dropout, seed 1, at twice the small batch. With
# WRITE_GOLDEN_LOSSES=1 the test writes them anew.
GOLDEN_LOSSES = Path(__file__).parent / "golden_losses.json"
GOLDEN_TOLERANCE = 0.02  # relative: kernels of another processor or release round differently

# Tasks with each loss and each kind of data; others share theirs with one of them.
OF_EACH_DOMAIN = ("resnet18", "pytorch_unet", "hf_Bert", "speech_transformer", "tts_angular")
# Relative: batch norm takes its statistics, and a mean over tokens its count, per process.
TWO_PROCESSES_TOLERANCE = 0.05


@pytest.fixture(scope="module")
def on_two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder with each task's run on two processes, and what these printed."""
    folder = two_processes.prepare(tmp_path_factory.mktemp("two"))
    script = Path(two_processes.__file__)
    paths = {"PYTHONPATH": f"{search_path()}:{script.parent}", "HF_HUB_OFFLINE": "1"}
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


@pytest.mark.parametrize("name", OF_EACH_DOMAIN)
def test_a_task_that_lacks_its_data_names_the_command_that_makes_them(name, tmp_path, monkeypatch):
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    command = f"python3 data_prep/{tasks.get(name).data_commands[0]}.py"
    with refused("data_dir", tmp_path, command):
        tasks.data_of(TrainConfig(model=name))


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


def test_a_batch_that_cannot_fit_is_refused_with_what_it_would_need():
    if hardware.gpu_count():
        pytest.skip("only host memory is asked about: run on a machine without a GPU")
    about = re.compile(r"about [\d.]+ GiB")
    with refused(None, "resnet50", "batch_size=100000", "image_size=224", about):
        dry_run(TrainConfig(batch_size=100_000), LaunchConfig())


def test_need_grows_with_the_batch_and_with_the_area_of_the_images():
    small, large = (
        memory_estimate.needed_bytes(TrainConfig(batch_size=16, image_size=size))
        for size in (64, 128)
    )
    fixed = (
        memory_estimate.needed_bytes(TrainConfig(batch_size=1, image_size=32))
        - tasks.get("resnet50").activation_bytes_per_sample * 32**2 // 224**2
    )
    assert large - fixed == pytest.approx(4 * (small - fixed), rel=0.01)


def test_what_resnet50_declares_is_what_its_forward_pass_keeps():
    """The bytes that autograd keeps, by storage, and the largest once more, for its gradient."""
    task = tasks.get("resnet50")
    model, kept = task.build_model().train(), {}
    own = {value.untyped_storage()._cdata for value in (*model.parameters(), *model.buffers())}

    def keep(value: torch.Tensor) -> torch.Tensor:
        if (key := value.untyped_storage()._cdata) not in own:
            kept[key] = value
        return value

    batch = (torch.zeros(2, 3, 224, 224), torch.zeros(2, dtype=torch.int64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        task.loss(model, batch)
    sizes = [value.untyped_storage().nbytes() for value in kept.values()]
    declared = task.activation_bytes_per_sample
    assert (sum(sizes) + max(sizes)) / 2 == pytest.approx(declared, rel=0.02)


@pytest.mark.parametrize("name", ["tts_angular", "resnet50"])  # moments, and momentum alone
def test_a_run_that_saves_checkpoints_needs_the_copy_that_they_are_written_from(name):
    task = tasks.get(name)
    model = task.build_model()
    parameters = list(model.parameters())
    optimizer = task.optimizer.build(parameters, lr=None, weight_decay=None, accelerated=False)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    leaves = torch.utils._pytree.tree_leaves(Parts(model, [optimizer]).state())
    copy_bytes = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
    without, saving = TrainConfig(name), TrainConfig(name, checkpoint_every="10")
    for processes in (1, 2):  # of which one has the copy
        more = memory_estimate.needed_bytes(saving, processes) - memory_estimate.needed_bytes(
            without, processes
        )
        assert more * processes == pytest.approx(copy_bytes, rel=0.01)


@pytest.fixture
def task_file(checkout: Path, tmp_path: Path) -> str:
    """Write the example to a file, and return it as `--model` takes it."""
    (source,) = re.findall(
        r"```python\n(.*?)```", (checkout / "docs/guides/add_a_model.md").read_text(), re.DOTALL
    )
    (tmp_path / "mobilenet_v3.py").write_text(source)
    return f"{tmp_path / 'mobilenet_v3.py'}:TASK"


@pytest.mark.slow
def test_the_example_trains_without_being_registered(task_file, tmp_path):
    sizes = {"batch_size": 4, "image_size": 32, "max_steps": 3, "evaluate": False}
    config = TrainConfig(model=task_file, run_dir=str(tmp_path / "run"), **sizes)
    results = launch(config, LaunchConfig(), show_log=False, progress=False)
    assert results is not None and results.steps == 3 and results.loss["last"] is not None


def test_the_example_is_true_of_its_model_and_a_page_is_all_that_its_notebook_takes(
    task_file, checkout, tmp_path, monkeypatch
):
    build = runpy.run_path(str(checkout / "notebooks" / "build.py"))
    task = tasks.get(task_file)
    monkeypatch.setattr(tasks, "get", {"mobilenet_v3": task}.__getitem__)
    page = tmp_path / "mobilenet_v3.md"
    words = ["summary", "minutes", "data", "model", "architecture_text", "why", "exercises"]
    sections = {name: f"{name}." for name in words} | {
        "title": "MobileNetV3",
        "architecture": "notebook.show_source(build_model)",
        "batches": "3",
        "techniques": '"compiler"',
    }
    page.write_text("\n".join(f"# {name}\n{text}\n" for name, text in sections.items()))
    notebook = nbformat.reads(build["render"](page), as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert 'notebook.settings("mobilenet_v3")' in text and "# MobileNetV3" in text
    assert "resnet50" not in text
    assert "mobilenet_v3_small(num_classes=1000, dropout=0.0)" in text
    assert "torch.optim.AdamW(parameters, lr=1e-3)" in text
    with torch.device("meta"):
        assert sum(p.numel() for p in task.build_model().parameters()) == task.parameters

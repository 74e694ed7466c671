"""The fake device: right programs give right values in every order, and wrong ones are noticed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_task
from fake_gpu.running import ROOT, SECONDS, code_on_ranks, pytest_on_device

from gallery_lib.measure.replay import read_timeline
from gallery_lib.system import paths
from gallery_lib.system.processes import end_supervised, start_supervised


def in_orders(*drawn: int) -> pytest.MarkDecorator:
    """Return a parametrisation with orders of the device's work; CI runs the latest."""
    others = ("early", *(f"random:{seed}" for seed in drawn))
    marked = (pytest.param(order, marks=pytest.mark.thorough) for order in others)
    return pytest.mark.parametrize("order", ["late", *marked])


@pytest.mark.slow
@in_orders(1, 2, 4, 5, 6)
def test_what_runs_inside(order):
    """One task of the gallery trains here; thorough tests have the others."""
    names = ("streams", "loader", "steps", "optimizers", "checkpoint", "graphs", "training")
    files = [f"tests/fake_gpu/inside_{name}.py" for name in names]
    tasks = ("-k", "not inside_training or tts_angular or figures")
    pytest_on_device(*files, *tasks, order=order, devices=2, architectures="90,80")


@pytest.mark.slow
@in_orders()
def test_the_tests_for_a_gpu_pass(order):
    folders = {
        path.parent.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("*.py")
        if "mark.gpu" in path.read_text()
    }
    kernels, variants = Path("tests/kernels"), Path("tests/measure/test_variants.py")
    assert folders == {kernels, variants.parent, Path("tests/fake_gpu")}
    pytest_on_device("-m", "gpu", str(kernels), str(variants), order=order)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_tasks_train_on_it_as_on_the_cpu():
    pytest_on_device("tests/fake_gpu/inside_training.py", "-k", "not tts_angular")


@pytest.mark.slow
@in_orders(5)
def test_two_ranks_average_their_gradients(order):
    printed = code_on_ranks("tests/fake_gpu/inside_ranks.py", ranks=2, order=order)
    assert "int8: relative error" in printed and "FAILED" not in printed


@pytest.mark.slow
def test_two_ranks_that_see_one_device_each_average_their_gradients():
    printed = code_on_ranks("tests/fake_gpu/inside_ranks.py", ranks=2, devices=1)
    assert "int8: relative error" in printed and "FAILED" not in printed


@pytest.mark.slow
@in_orders(6)
def test_two_accelerated_ranks_train_by_captured_graphs(order):
    """With a GradScaler, accumulation, smaller batches in between and an overflow on one rank."""
    printed = code_on_ranks("tests/fake_gpu/inside_ranks.py", 2, ("captured",), order=order)
    assert "fp16 True, 2 batches" in printed and "FAILED" not in printed


@pytest.mark.slow
def test_two_ranks_record_when_their_gradients_are_ready(tmp_path):
    file = tmp_path / "timeline.json"
    printed = code_on_ranks(
        "tests/fake_gpu/inside_ranks.py", 2, arguments=(str(file), str(tmp_path / "run"))
    )
    assert "world size 2, 2 × Fake H100" in printed
    timeline = read_timeline(file)
    model = dict(tiny_task.build_model().named_parameters())
    assert timeline.steps == 3 and timeline.environment["device"] == "2 × Fake H100"
    assert {one.parameter: one.shape for one in timeline.gradients} == {
        name: tuple(parameter.shape) for name, parameter in model.items()
    }
    ready = [one.ready_seconds for one in timeline.gradients]
    assert ready[0] > 0 and ready == sorted(ready) and ready[-1] <= timeline.backward_seconds
    assert {timeline.gradients[0].parameter, timeline.gradients[1].parameter} == {
        "6.weight", "6.bias"
    }  # fmt: skip
    assert timeline.forward_seconds > 0 and timeline.optimizer_seconds > 0


# --------------------------------------------------------------------------------------------------
# A machine with a GPU as they are lent. What runs there runs on the fake device.

PACKAGES = (
    "torch==2.11.*", "torchvision==0.26.*", "timm", "transformers", "matplotlib", "cuda-core>=1.0",
    "psutil", "pytest", "hypothesis",
)  # fmt: skip
DISK_GIB = 20
AS_ON_A_GPU = """
import importlib.util, torch
assert torch.__version__.startswith("2.11."), torch.__version__
for name in ("gallery_lib", "papermill", "jupyterlab", "simplejpeg", "msgspec"):
    assert importlib.util.find_spec(name) is None, name
"""


@pytest.fixture(scope="module")
def python() -> str:
    """Return the Python of an environment as a lent GPU has it, made once in the cache folder.

    It has torch 2.11, and the packages of such an image only: nothing of Jupyter.
    """
    folder = paths.cache_dir() / "gpu-machine"
    made, of_it = folder / "packages.txt", folder / "bin" / "python"
    wanted = "\n".join(PACKAGES)
    if made.is_file() and made.read_text() == wanted:
        return str(of_it)
    free = shutil.disk_usage(paths.cache_dir()).free / 2**30
    if free < DISK_GIB:
        pytest.skip(f"an environment with torch 2.11 needs {DISK_GIB} GiB of disk; {free:.0f} free")
    uv = shutil.which("uv") or f"{sys.prefix}/bin/uv"
    if not Path(uv).is_file():
        pytest.skip("no uv here, which makes the environment with torch 2.11")
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "--quiet", "--python", str(of_it), *PACKAGES],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            pytest.skip(f"torch 2.11 cannot be installed, which a network allows: {done.stderr}")
    subprocess.run([str(of_it), "-c", AS_ON_A_GPU], cwd=folder, timeout=120, check=True)
    made.write_text(wanted)
    return str(of_it)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    "tests",
    [
        "test_device.py::test_what_runs_inside[late]",
        "test_device.py::test_the_tests_for_a_gpu_pass[late]",
        "test_commands.py::test_the_first_minutes_on_a_gpu_fit_in_their_time[ResNet-50]",
    ],
)
def test_what_runs_on_a_gpu_runs_there(python: str, tests: str) -> None:
    options = ("-o", "addopts=--strict-markers --import-mode=importlib", "-p", "no:cacheprovider")
    process = start_supervised(
        [python, "-m", "pytest", "-q", *options, f"tests/fake_gpu/{tests}"], {},
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=SECONDS)
    finally:
        end_supervised(process)
    assert process.returncode == 0 and "1 passed" in printed, printed

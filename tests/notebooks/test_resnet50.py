"""The shipped ResNet-50 notebook, run by papermill as a reader would."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

SMALL = {"image_size": 32, "batch_size": 8, "rounds": 4, "block_steps": 3}


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the kernel `gallery` is this interpreter."""
    folder = tmp_path_factory.mktemp("jupyter")
    command = [sys.executable, "-m", "ipykernel", "install", "--prefix", str(folder), "--name", "gallery"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return {"JUPYTER_PATH": str(folder / "share" / "jupyter")}


def papermill(checkout: Path, out: Path, kernel: dict[str, str], **parameters: object) -> list[str]:
    words = [word for name, value in parameters.items() for word in ("-p", name, str(value))]
    return [
        sys.executable,
        "-m",
        "papermill",
        str(checkout / "notebooks" / "resnet50.ipynb"),
        str(out),
        "--cwd",
        str(checkout / "notebooks"),
        *words,
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"batch_sise": 8}, "unknown parameter `batch_sise`. Did you mean `batch_size`"),
        ({"batch_size": "abc"}, "batch_size='abc' must be a whole number"),
        ({"profile": "huge"}, "profile='huge' must be auto or quick or full"),
        ({"amp_level": "O2"}, "amp_level=O2 is not offered"),
        ({"data_dir": "/nowhere"}, "/nowhere"),
    ],
)
def test_a_bad_parameter_stops_the_run_at_once_and_is_named(
    checkout: Path, tmp_path: Path, kernel: dict[str, str], runs_dir: Path, parameters: dict, message: str
) -> None:
    command = papermill(checkout, tmp_path / "out.ipynb", kernel, **parameters)
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **kernel})
    assert result.returncode != 0
    assert message in result.stderr
    assert not runs_dir.exists()  # nothing was started


@pytest.mark.slow
def test_the_notebook_runs_and_shows_tables_and_figures_with_alternative_text(
    checkout: Path, tmp_path: Path, kernel: dict[str, str], runs_dir: Path
) -> None:
    command = papermill(checkout, tmp_path / "out.ipynb", kernel, **SMALL)
    result = subprocess.run(command, capture_output=True, text=True, timeout=590, env={**os.environ, **kernel})
    assert result.returncode == 0, result.stderr[-3000:]
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs if output.output_type in ("display_data", "execute_result")]
    figures = [output for output in outputs if "image/png" in output.data]
    assert len(figures) == 5
    assert all(len(figure.metadata["image/png"]["alt"]) > 30 for figure in figures)
    assert all("text/html" not in output.data and "application/javascript" not in output.data for output in outputs)
    text = "\n".join(output.data["text/markdown"] for output in outputs if "text/markdown" in output.data)
    for part in ("step time p50", "start-up", "gradient scale", "compiler-opt against baseline", "Break-even", "channels_last"):
        assert part in text
    comparisons = sorted(runs_dir.rglob("comparison.json"))
    assert len(comparisons) == 2
    for path in comparisons:
        values = json.loads(path.read_text())
        assert values["parity"]["passed"], values["parity"]
        assert list(values["variants"]) == ["baseline", "compiler-opt"]


@pytest.mark.slow
def test_killing_a_worker_fails_the_notebook_with_the_reason_and_leaves_no_process(
    checkout: Path, tmp_path: Path, kernel: dict[str, str]
) -> None:
    command = papermill(checkout, tmp_path / "out.ipynb", kernel, **SMALL)
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **kernel})
    me = psutil.Process(running.pid)
    deadline = time.monotonic() + 120
    victim = None
    while victim is None:
        assert time.monotonic() < deadline, "no worker was started"
        assert running.poll() is None
        everyone = me.children(recursive=True)
        for process in everyone:
            try:
                words = process.cmdline()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if "gallery_lib.measure.worker" in words and "torch.distributed.run" not in words:
                victim = process
        time.sleep(0.05)
    time.sleep(2)
    everyone = me.children(recursive=True)
    victim.kill()
    _, errors = running.communicate(timeout=60)
    assert running.returncode != 0
    assert "did not finish" in errors
    assert "SIGKILL" in errors
    time.sleep(3)
    assert [p for p in everyone if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


def test_the_committed_notebooks_are_what_the_template_and_pages_give(checkout: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(checkout / "notebooks" / "build.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr

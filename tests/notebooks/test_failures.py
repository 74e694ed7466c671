"""The shipped ResNet-50 notebook with a bad parameter and with a killed worker."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from worker_processes import workers_of

SMALL = {"image_size": 32, "batch_size": 8, "rounds": 4, "block_steps": 3}


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
    checkout: Path,
    tmp_path: Path,
    kernel: dict[str, str],
    runs_dir: Path,
    parameters: dict,
    message: str,
) -> None:
    command = papermill(checkout, tmp_path / "out.ipynb", kernel, **parameters)
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **kernel}
    )
    assert result.returncode != 0
    assert message in result.stderr
    assert not runs_dir.exists()  # nothing was started


@pytest.mark.slow
def test_killing_a_worker_fails_the_notebook_with_the_reason_and_leaves_no_process(
    checkout: Path, tmp_path: Path, kernel: dict[str, str]
) -> None:
    command = papermill(checkout, tmp_path / "out.ipynb", kernel, **SMALL)
    running = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **kernel},
    )
    me = psutil.Process(running.pid)
    deadline = time.monotonic() + 120
    killed = False
    # Some workers, such as those of the float64 reference, end before they can be killed.
    while not killed:
        assert time.monotonic() < deadline, "no worker lasted long enough to be killed"
        assert running.poll() is None
        victim = next(iter(workers_of(me)), None)
        time.sleep(2 if victim else 0.05)
        everyone = me.children(recursive=True)
        with contextlib.suppress(psutil.NoSuchProcess):
            if victim and victim.status() != psutil.STATUS_ZOMBIE:
                victim.kill()
                killed = True
    _, errors = running.communicate(timeout=60)
    assert running.returncode != 0
    assert "did not finish" in errors
    assert "SIGKILL" in errors
    time.sleep(3)
    assert [p for p in everyone if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []

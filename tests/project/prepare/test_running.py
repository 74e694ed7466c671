"""What prepare.sh starts at its end: a notebook with --run, JupyterLab with --lab."""

from __future__ import annotations

import re
import signal

import pytest


@pytest.mark.parametrize("name", ["resnet50", "notebooks/resnet50.ipynb"])
def test_run_executes_the_notebook_in_a_folder_of_its_own_and_shows_what_it_measured(copy, name):
    notes = copy.prepare("--run", name, "-p", "batch_size", "20", "-p", "profile", "full")
    notebook, runs = copy.root / "notebooks/resnet50.ipynb", copy.root / "runs/notebooks"
    words = (
        f"-m gallery_lib run {notebook} --out {runs}/DATE-resnet50 -p batch_size 20 -p profile full"
    )
    assert words in re.sub(r"[0-9]{8}-[0-9]{6}", "DATE", notes)


def test_a_failed_notebook_passes_its_exit_code_on_and_nothing_follows(copy):
    (copy.root / "failing").touch()
    result = copy.run("--run", "vgg16", "--lab")
    assert result.returncode == 3
    assert "Next" not in result.stdout and "jupyterlab" not in copy.notes()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_script_alone_ends_the_notebook_at_once(copy, sent, code):
    (copy.root / "endless").touch()
    process = copy.start("--run", "resnet50")
    copy.wait_for("started")
    process.send_signal(sent)
    _, err = process.communicate(timeout=20)  # until no process that could write there is left
    assert process.returncode == code and "interrupted" in err


def test_lab_starts_jupyterlab_for_the_checkout_in_its_own_place(copy):
    last = copy.prepare("--lab").splitlines()[-1]
    assert last == f"python -m gallery_lib.notebooks.jupyterlab {copy.root}"

"""What prepare.sh installs, when and in which order, and what it starts at its end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from project.prepare.conftest import write_script

TESTS = "python -m pytest -m not gpu and not thorough --durations=60 --durations-min=15"


def test_the_first_run_installs_with_hashes_and_the_second_installs_nothing(copy, tmp_path):
    notes = copy.prepare(cwd=tmp_path, says=f"Next, in {copy.root}:")
    order = [
        "uv venv",
        "--require-hashes -r pyproject.toml --extra=tasks --extra=notebooks --extra=cuda -c "
        "requirements.lock",
        "--no-deps -e .",
        # The kernel finds the commands of its environment.
        f"--display-name Gallery --env PATH {copy.root}/.venv/bin:${{PATH}}\n",
        "data_prep/mock_imagenet.py",
    ]
    places = [notes.index(words) for words in order]
    assert places == sorted(places)
    assert "cache \n" in notes
    assert "uv pip" not in copy.prepare(says="already there")


def test_test_makes_an_environment_with_the_tools_which_then_stay(copy):
    copy.prepare()
    del copy.env["HOME"]
    notes = copy.prepare("--test")
    assert "uv venv" in notes and "-r pyproject.toml --all-extras -c" in notes
    assert f"cache {copy.root}/.cache/uv\n" in notes  # uv's own would be in the home folder
    assert [line for line in notes.splitlines() if line.startswith("python")][-1] == TESTS
    assert "uv pip" not in copy.prepare()


def test_a_failure_does_not_count_as_done_and_says_what_to_do(copy):
    (copy.root / "offline").touch()
    failed = copy.run()
    assert failed.returncode == 2
    assert "Without network" in failed.stderr and "UV_SYSTEM_CERTS=1" in failed.stderr
    (copy.root / "offline").unlink()
    assert "uv venv" in copy.prepare()


def test_what_pythons_own_venv_has_made_is_made_anew_and_another_ones_is_refused(copy):
    """Where there is no uv, `python -m venv` makes the environment, and writes its prompt so."""
    for prompt, code in (("gallery", 0), ("mine", 2)):
        shutil.rmtree(copy.root / ".venv", ignore_errors=True)
        words = ["-m", "venv", "--without-pip", "--prompt", prompt, copy.root / ".venv"]
        subprocess.run([sys.executable, *words], check=True, timeout=60)
        done = copy.run()
        assert done.returncode == code, done.stderr
        assert ("not made by prepare.sh" in done.stderr) == bool(code)


def test_a_damaged_or_moved_environment_or_one_of_another_lock_is_made_anew(copy, tmp_path):
    copy.prepare()
    (copy.root / ".venv/bin/python").unlink()
    assert "uv venv" in copy.prepare()
    copy.root = copy.root.rename(tmp_path / "moved")
    assert "uv venv" in copy.prepare()
    with (copy.root / "requirements.lock").open("a") as file:
        file.write("# changed\n")
    assert "uv venv" in copy.prepare()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_after_an_interruption_the_next_run_starts_the_environment_anew(copy, sent):
    """All that the installation has started is gone when the script ends."""
    (copy.root / "slow").write_text("60")
    if sent != signal.SIGKILL:
        (copy.root / "forking").touch()
    process = copy.start()
    copy.wait_for("started")
    os.killpg(process.pid, sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}.get(sent, 143)
    if sent != signal.SIGKILL:
        assert not psutil.pid_exists(int((copy.root / "forked").read_text()))
        (copy.root / "forking").unlink()
    assert ("interrupted" in err) == (sent != signal.SIGKILL)
    assert not (copy.root / ".venv/gallery-stamp").exists()

    (copy.root / "slow").unlink()
    assert "uv venv" in copy.prepare(says="making it anew")


def test_two_at_once_install_once(copy):
    (copy.root / "slow").write_text("3")
    first = copy.start()
    copy.wait_for("started")
    second = copy.run()
    first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "waiting for it" in second.stdout and "already there" in second.stdout
    assert copy.notes().count("uv venv") == 1


def test_a_python_without_its_optimisations_is_taken_only_where_no_other_is_there(copy):
    def seems_built_with(name: str, flags: str) -> None:
        folder = copy.bin.parent / f"disguise of {name}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(
            "import sys, sysconfig\n"
            f"sys.executable = sys._base_executable = {str(copy.bin / name)!r}\n"
            f"sysconfig.get_config_vars()['CONFIG_ARGS'] = {flags!r}\n"
            "sys.base_prefix = '/elsewhere'\n"
        )
        start = f'PYTHONPATH="{folder}" exec "{sys.executable}" "$@"'
        write_script(copy.bin / name, f"#!/usr/bin/env bash\n{start}\n")

    seems_built_with("python3", "")
    assert f"uv venv --quiet --python {copy.bin}/python3 --prompt" in copy.prepare()
    seems_built_with("python3.12", "'--enable-optimizations'")
    (copy.root / ".venv" / "gallery-stamp").unlink()
    assert f"uv venv --quiet --python {copy.bin}/python3.12 --prompt" in copy.prepare()


# --------------------------------------------------------------------------------------------------
# What it starts: a notebook with --run, JupyterLab with --lab


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

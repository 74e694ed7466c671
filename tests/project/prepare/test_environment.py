"""What prepare.sh installs, when and in which order, and that it can be interrupted anywhere."""

from __future__ import annotations

import os
import signal
import sys

import psutil
import pytest
from project.prepare.small_checkout import write_script

TESTS = "python -m pytest -m not gpu and not thorough --durations=60 --durations-min=15"


def test_the_first_run_installs_with_hashes_and_the_second_installs_nothing(copy, tmp_path):
    first = copy.run(cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    notes = copy.notes()
    order = [
        "uv venv",
        "-r pyproject.toml --extra=tasks --extra=notebooks --extra=cuda -c requirements.lock",
        "--no-deps -e .",
        "ipykernel install",
        "data_prep/mock_imagenet.py",
    ]
    places = [notes.index(words) for words in order]
    assert places == sorted(places)
    assert "[3/3]" in first.stdout
    assert f"Next, in {copy.root}:" in first.stdout

    second = copy.run()
    assert second.returncode == 0
    assert "already there" in second.stdout
    assert "uv pip" not in copy.notes()


def test_without_a_home_uv_keeps_its_cache_in_ours(copy):
    copy.run()
    notes = copy.notes()
    assert "cache \n" in notes
    # The kernel finds the commands of its environment.
    assert f"--display-name Gallery --env PATH {copy.root}/.venv/bin:${{PATH}}\n" in notes
    del copy.env["HOME"]
    copy.run("--test")
    assert f"cache {copy.root}/.cache/uv\n" in copy.notes()


def test_test_makes_an_environment_with_the_tools_which_then_stay(copy):
    copy.run()
    copy.notes()
    result = copy.run("--test")
    assert result.returncode == 0, result.stderr
    notes = copy.notes()
    assert "uv venv" in notes
    assert "-r pyproject.toml --all-extras -c" in notes
    assert [line for line in notes.splitlines() if line.startswith("python")][-1] == TESTS
    copy.run()
    assert "uv pip" not in copy.notes()


def test_after_a_changed_lock_it_is_made_anew_and_a_failure_does_not_count_as_done(copy):
    copy.run()
    with (copy.root / "requirements.lock").open("a") as file:
        file.write("# changed\n")
    copy.notes()
    (copy.root / "offline").touch()
    failed = copy.run()
    assert failed.returncode == 2
    assert "Without network" in failed.stderr and "UV_SYSTEM_CERTS=1" in failed.stderr
    notes = copy.notes()
    assert "uv venv" in notes and "--require-hashes" in notes
    (copy.root / "offline").unlink()
    assert copy.run().returncode == 0
    assert "uv venv" in copy.notes()


def test_a_damaged_or_moved_environment_is_made_anew(copy, tmp_path):
    copy.run()
    (copy.root / ".venv/bin/python").unlink()
    copy.notes()
    assert copy.run().returncode == 0
    assert "uv venv" in copy.notes()

    copy.root = copy.root.rename(tmp_path / "moved")
    assert copy.run().returncode == 0
    assert "uv venv" in copy.notes()


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
    code = {signal.SIGINT: 130, signal.SIGKILL: -9}.get(sent, 143)
    assert process.returncode == code
    if sent != signal.SIGKILL:
        assert not psutil.pid_exists(int((copy.root / "forked").read_text()))
        (copy.root / "forking").unlink()
    assert ("interrupted" in err) == (sent != signal.SIGKILL)
    assert not (copy.root / ".venv/gallery-stamp").exists()

    (copy.root / "slow").unlink()
    copy.notes()
    result = copy.run()
    assert result.returncode == 0, result.stderr
    assert "making it anew" in result.stdout
    assert "uv venv" in copy.notes()


def test_two_at_once_install_once(copy):
    (copy.root / "slow").write_text("3")
    first = copy.start()
    copy.wait_for("started")
    second = copy.run()
    first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "waiting for it" in second.stdout
    assert "already there" in second.stdout
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
    assert copy.run().returncode == 0
    assert f"uv venv --quiet --python {copy.bin}/python3 --prompt" in copy.notes()
    seems_built_with("python3.12", "'--enable-optimizations'")
    (copy.root / ".venv" / "gallery-stamp").unlink()
    assert copy.run().returncode == 0
    assert f"uv venv --quiet --python {copy.bin}/python3.12 --prompt" in copy.notes()

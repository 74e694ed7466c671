"""Options of prepare.sh: help, and the refusal of wrong ones before anything is made."""

from __future__ import annotations

import re
import subprocess

import pytest
from refusal import check_refused_command

from gallery_lib.cli.preparation import options


def test_it_is_valid_bash(checkout):
    subprocess.run(["bash", "-n", checkout / "prepare.sh"], check=True)
    subprocess.run(["bash", "-n", checkout / ".ci/run"], check=True)


def test_help_names_every_option(copy):
    result = copy.run("--help")
    assert result.returncode == 0
    for option in ("--run", "-p", "--lab", "--test", "--into-current", "--data", "--lock"):
        assert f"  {option} " in result.stdout
    assert re.findall(r"^  (-\S+) ", result.stdout, re.MULTILINE) == options.names()


def test_help_needs_no_python(copy):
    (copy.bin / "python3").unlink()
    assert copy.run("--help").stdout.startswith("Usage: bash prepare.sh [options]")


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (["--tset"], ["--tset", "Did you mean --test?"]),
        (["--frobnicate"], ["--frobnicate", "--into-current"]),
        (["--data", "smal"], ["--data smal", "Did you mean small?"]),
        (["--data"], ["--data", "small imagenet-sized"]),
        (["--test=yes"], ["--test", "no value"]),
        (["--run"], ["--run", "name"]),
        (["--run", "--test"], ["--run", "name"]),
        (["--run", "resnet5"], ["--run resnet5", "Did you mean resnet50?"]),
        (["--run", "nothing-like-it"], ["--run nothing-like-it", "resnet50 vgg16"]),
        (["--run", "resnet50", "--run", "vgg16"], ["--run", "twice"]),
        (["--run", "resnet50", "-p", "batch_size"], ["-p", "a name and a value"]),
        (["--run", "resnet50", "-p", "batch", "3"], ["prepare.sh: ", "`batch`", "`batch_size`"]),
        (
            ["--run", "resnet50", "-p", "batch_size", "many"],
            ["prepare.sh: ", "batch_size='many'", "whole number"],
        ),
        (["-p", "batch_size", "20"], ["-p", "--run"]),
        (["--lab", "--test"], ["--lab", "--test", "together"]),
    ],
)
def test_a_wrong_option_ends_with_2_and_says_what_to_do_before_anything_is_made(
    copy, given, values
):
    result = copy.run(*given)
    check_refused_command(result.returncode, result.stderr, *values)
    assert not (copy.root / ".venv").exists()

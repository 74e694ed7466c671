"""Options of prepare.sh: help, and the refusal of wrong ones before anything is made."""

from __future__ import annotations

import subprocess

import pytest


def test_it_is_valid_bash(checkout):
    subprocess.run(["bash", "-n", checkout / "prepare.sh"], check=True)
    subprocess.run(["bash", "-n", checkout / ".ci/run"], check=True)


def test_help_names_every_option(copy):
    result = copy.run("--help")
    assert result.returncode == 0
    for option in ("--run", "-p", "--lab", "--test", "--into-current", "--data", "--lock"):
        assert f"  {option} " in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tset"], "Did you mean --test?"),
        (["--frobnicate"], "--frobnicate: no such option."),
        (["--data", "smal"], "Did you mean small?"),
        (["--data"], "small imagenet-sized"),
        (["--run"], "needs the name"),
        (["--run", "--test"], "needs the name"),
        (["--run", "resnet5"], "Did you mean resnet50?"),
        (["--run", "nothing-like-it"], "There are: resnet50 vgg16"),
        (["--run", "resnet50", "--run", "vgg16"], "twice"),
        (["--run", "resnet50", "-p", "batch_size"], "a name and a value"),
        (
            ["--run", "resnet50", "-p", "batch", "3"],
            "error: unknown parameter `batch`. Did you mean `batch_size`?",
        ),
        (
            ["--run", "resnet50", "-p", "batch_size", "many"],
            "error: batch_size='many' must be a whole number",
        ),
        (["-p", "batch_size", "20"], "--run"),
        (["--lab", "--test"], "do not go together"),
    ],
)
def test_a_wrong_option_ends_with_2_and_says_what_to_do_before_anything_is_made(
    copy, options, words
):
    result = copy.run(*options)
    assert result.returncode == 2
    assert words in result.stderr
    assert not (copy.root / ".venv").exists()

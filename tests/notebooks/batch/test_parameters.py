"""A notebook's parameters are checked before a kernel starts, and without torch."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusal import check_refused_command, refused
from tiny_notebooks import write_notebook

from gallery_lib.notebooks import plan

WITHOUT_TORCH = """
import sys
from gallery_lib import notebook
from gallery_lib.notebooks import plan
from gallery_lib.notebooks.cells import communication, data_parallel, performance_data
try:
    {}
except ValueError as error:
    print(error.parameter)
assert 'torch' not in sys.modules
"""
OWN = 'steps: int = 3\nname = "x"\nrate: float = None\nquiet = False'


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["-p", "batch_sise", "8"], ["`batch_sise`", "`batch_size`"]),
        (["-p", "batch_size", "abc"], ["batch_size='abc'", "whole number"]),
        (["-p", "batch_size", "0"], ["batch_size='0'", "between 1 and"]),
        (["data_parallel", "-p", "image_size", "5000"], ["image_size='5000'", 1024]),
        (["index", "-p", "seed", "1"], ["`seed`", "no parameters"]),
        (["--profile", "quik"], ["profile='quik'", "quick or full"]),
        (["resnet5"], ["`resnet5`", "`resnet50`"]),
        (["/nowhere/x.ipynb"], ["`/nowhere/x.ipynb`"]),
        (["--resume"], ["--resume", "--out"]),
    ],
)
def test_bad_input_is_refused_within_five_seconds_and_before_anything_starts(
    checkout: Path,
    runs_dir: Path,
    words: list[str],
    values: list[object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gallery_lib.cli.main import main

    began = time.monotonic()
    check_refused_command(main(["run", *words]), capsys.readouterr().err, *values)
    assert time.monotonic() - began < 5
    assert not runs_dir.exists()


@pytest.mark.parametrize(
    ("call", "parameter"),
    [
        ("plan.plan(['resnet50'], None, {'rounds': '2'})", "rounds"),
        ("notebook.settings('resnet50', {'batch_size': 'abc'})", "batch_size"),
        ("data_parallel.settings({'batch_size': 'abc'})", "batch_size"),
        ("communication.settings({'seeds': 'abc'})", "seeds"),
        ("performance_data.settings({'table': 3})", "table"),
    ],
)
def test_a_wrong_parameter_is_refused_by_plan_and_first_cell_without_torch(
    checkout: Path, call: str, parameter: str
) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH.format(call)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=checkout)
    assert (result.stderr, result.stdout) == ("", f"{parameter}\n")


def test_the_parameters_cell_of_any_notebook_gives_names_and_values_are_literals(
    tmp_path: Path,
) -> None:
    path = write_notebook(tmp_path, "own", "steps", parameters=OWN)
    given = {"steps": "5", "name": "five", "rate": "1e-5", "quiet": "True"}
    expected = {"steps": 5, "name": "five", "rate": 1e-5, "quiet": True}
    assert plan.plan([str(path)], given=given)[0].parameters == expected
    with refused("step", "`step`", "`steps`"):
        plan.plan([str(path)], given={"step": 3})
    for damaged in ('{"cells": [', '{"cells": 3}', "[]"):
        path.write_text(damaged)
        with refused(path):
            plan.plan([str(path)])


def test_a_parameter_goes_to_the_notebooks_that_have_it_and_to_no_other() -> None:
    names, given = ["index", "data_parallel", "resnet50"], {"seed": "3", "epochs": "1"}
    planned = {one.name: one.parameters for one in plan.plan(names, "quick", given)}
    own = {"profile": "quick", "seed": 3}
    assert planned == {"index": {}, "data_parallel": {"epochs": 1}, "resnet50": own}


def test_the_digest_changes_with_notebook_and_parameters_and_with_nothing_else(
    tmp_path: Path,
) -> None:
    path = write_notebook(tmp_path, "one", "1")
    digests = [plan.digest(path, {"seed": seed}) for seed in (1, 1, 2)]
    (tmp_path / "one").mkdir()
    # A notebook's scripts lie in a folder of its name.
    (tmp_path / "one" / "script.py").write_text("print(1)")
    digests.append(plan.digest(path, {"seed": 1}))
    write_notebook(tmp_path, "one", "2")
    digests.append(plan.digest(path, {"seed": 1}))
    assert digests[0] == digests[1] and len(set(digests)) == 4


def test_a_notebook_is_found_by_name_by_file_name_and_by_path(
    checkout: Path, tmp_path: Path
) -> None:
    own = checkout / "notebooks" / "index.ipynb"
    for name in ("index", "index.ipynb", str(own)):
        assert [planned.path for planned in plan.plan([name])] == [own]
    other = write_notebook(tmp_path, "index", "1")
    with refused("names", "index", own, other):
        plan.plan(["index", str(other)])

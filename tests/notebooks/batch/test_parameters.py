"""Parameters are checked against a notebook's declarations, without torch.

The check comes before a kernel starts.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from refusal import check_refused_command, refused
from tiny_notebooks import write_notebook

from gallery_lib.config import (
    CommunicationNotebookConfig,
    DataParallelNotebookConfig,
    NotebookConfig,
    PerformanceDataConfig,
    YourModelConfig,
)
from gallery_lib.config.options import check_value
from gallery_lib.notebooks.batch import parameters, plan
from gallery_lib.notebooks.batch.notebook_file import read_notebook

EXPECTED = {
    "communication": CommunicationNotebookConfig,
    "data_parallel": DataParallelNotebookConfig,
    "index": parameters.NoParameters,
    "performance_data": PerformanceDataConfig,
    "your_model": YourModelConfig,
}
OWN = 'steps: int = 3\nname = "x"\nrate: float = None\nquiet = False'


@pytest.fixture
def any_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept any kernel: these tests start none, so it need not be registered."""
    monkeypatch.setattr(plan, "_check_kernels", lambda notebooks: None)


def test_every_shipped_notebook_declares_one_of_the_gallerys_options_classes(
    checkout: Path,
) -> None:
    for path in (checkout / "notebooks").glob("*.ipynb"):
        assert parameters.options_class(read_notebook(path), path) is EXPECTED.get(
            path.stem, NotebookConfig
        )


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["-p", "batch_sise", "8"], ["`batch_sise`", "`batch_size`"]),
        (["resnet50", "-p", "images", "8"], ["`images`", "`image_size`"]),
        (["-p", "batch_size", "abc"], ["batch_size='abc'", "whole number"]),
        (["-p", "batch_size", "0"], ["batch_size='0'", "between 1 and"]),
        (["-p", "amp_level", "O2"], ["amp_level=O2", "O1"]),
        (["data_parallel", "-p", "image_size", "5000"], ["image_size='5000'", 1024]),
        (["index", "-p", "seed", "1"], ["`seed`", "no parameters"]),
        (["--profile", "quik"], ["profile='quik'", "quick or full"]),
        (["resnet5"], ["`resnet5`", "`resnet50`"]),
        (["/nowhere/x.ipynb"], ["`/nowhere/x.ipynb`"]),
        (["--deadline", "x"], ["deadline='x'"]),
        (["--resume"], ["--resume", "--out"]),
    ],
)
def test_bad_input_is_refused_within_five_seconds_and_before_anything_starts(
    checkout: Path,
    runs_dir: Path,
    words: list[str],
    values: list[object],
    any_kernel: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gallery_lib.cli.main import main

    began = time.monotonic()
    check_refused_command(main(["run", *words]), capsys.readouterr().err, *values)
    assert time.monotonic() - began < 5
    assert not runs_dir.exists()


def test_a_wrong_parameter_is_refused_by_the_command_itself_without_torch(checkout: Path) -> None:
    run = (
        "import sys; from gallery_lib.cli.main import main; "
        "code = main(['run', '-p', 'rounds', '2'])"
    )
    code = f"{run}; assert 'torch' not in sys.modules; sys.exit(code)"
    began = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=checkout
    )
    assert time.monotonic() - began < 5
    check_refused_command(result.returncode, result.stderr, "rounds='2'", "between 4 and")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("call", "parameter"),
    [
        ("notebook.settings('resnet50', {'batch_size': 'abc'})", "batch_size"),
        ("data_parallel.settings({'batch_size': 'abc'})", "batch_size"),
        ("communication.settings({'seeds': 'abc'})", "seeds"),
        ("performance_data.settings({'sweep': 3})", "sweep"),
    ],
)
def test_a_wrong_parameter_is_refused_by_a_notebooks_first_cell_without_torch(
    checkout: Path, call: str, parameter: str
) -> None:
    code = (
        "import sys\n"
        "from gallery_lib import notebook\n"
        "from gallery_lib.notebooks.cells import communication, data_parallel, "
        "performance_data\n"
        "try:\n"
        f"    {call}\n"
        "except ValueError as error:\n"
        "    print(error.parameter)\n"
    )
    code += "assert 'torch' not in sys.modules"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=checkout
    )
    assert (result.stderr, result.stdout) == ("", f"{parameter}\n")


def test_a_kernel_that_is_not_registered_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_notebook(tmp_path, "one", "1")
    path.write_text(path.read_text().replace('"name": "gallery"', '"name": "no-such-kernel"'))
    with refused(path, "`no-such-kernel`", "prepare.sh"):
        plan.plan([str(path)])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"steps": "5"}, {"steps": 5}),
        ({"name": "5"}, {"name": "5"}),
        ({"rate": "0.5"}, {"rate": 0.5}),
        ({"rate": "none"}, {"rate": None}),
        ({"quiet": "true"}, {"quiet": True}),
    ],
)
def test_the_parameters_cell_of_any_notebook_gives_names_and_types(
    tmp_path: Path, given: dict[str, Any], expected: dict[str, Any], any_kernel: None
) -> None:
    path = write_notebook(tmp_path, "own", "steps", parameters=OWN)
    assert plan.plan([str(path)], given=given)[0].parameters == expected


@pytest.mark.parametrize("given", [{"steps": "a few"}, {"rate": "fast"}, {"quiet": "perhaps"}])
def test_a_value_of_another_type_than_the_cells_default_is_refused(
    tmp_path: Path, given: dict[str, Any], any_kernel: None
) -> None:
    path = write_notebook(tmp_path, "own", "steps", parameters=OWN)
    with refused(*next(iter(given.items()))):
        plan.plan([str(path)], given=given)


@pytest.mark.parametrize("source", ["import os", "steps = range(3)", "steps = ("])
def test_a_parameters_cell_that_cannot_be_read_is_refused_where_it_matters(
    tmp_path: Path, source: str, any_kernel: None
) -> None:
    path = write_notebook(tmp_path, "own", "1", parameters=source)
    if source == "import os":
        assert plan.plan([str(path)])[0].parameters == {}
        return
    with refused(path, "parameters cell"):
        plan.plan([str(path)])


def test_a_parameter_goes_to_the_notebooks_that_have_it_and_to_no_other(any_kernel: None) -> None:
    planned = {
        p.name: p.parameters
        for p in plan.plan(
            ["index", "data_parallel", "resnet50"], "quick", {"seed": "3", "epochs": "1"}
        )
    }
    assert planned == {
        "index": {},
        "data_parallel": {"epochs": 1},
        "resnet50": {"profile": "quick", "seed": 3},
    }


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_the_profiles_are_parameters_of_a_tasks_notebook(profile: str) -> None:
    values = plan.profile_values(profile)
    assert values == {
        name: check_value(NotebookConfig, name, value) for name, value in values.items()
    }


def test_the_digest_changes_with_notebook_and_parameters_and_with_nothing_else(
    tmp_path: Path,
) -> None:
    path = write_notebook(tmp_path, "one", "1")
    first = plan.digest(path, {"seed": 1})
    assert plan.digest(path, {"seed": 1}) == first
    assert plan.digest(path, {"seed": 2}) != first
    (tmp_path / "one").mkdir()
    # A notebook's scripts lie in a folder of its name.
    (tmp_path / "one" / "script.py").write_text("print(1)")
    second = plan.digest(path, {"seed": 1})
    assert second != first
    write_notebook(tmp_path, "one", "2")
    assert plan.digest(path, {"seed": 1}) != second


def test_a_notebook_is_found_by_name_by_file_name_and_by_path(
    checkout: Path, tmp_path: Path, any_kernel: None
) -> None:
    own = checkout / "notebooks" / "index.ipynb"
    for name in ("index", "index.ipynb", str(own)):
        assert [planned.path for planned in plan.plan([name])] == [own]
    other = write_notebook(tmp_path, "index", "1")
    with refused("names", "index", own, other):
        plan.plan(["index", str(other)])


def test_a_damaged_notebook_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.ipynb"
    path.write_text('{"cells": [')
    with refused(path):
        read_notebook(path)

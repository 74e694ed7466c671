"""The notebook performance_data: its parameters, what it shows of a sweep, and no sweep at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import synthetic_sweep
from executed_notebook import execute
from refusal import refused

from gallery_lib import tasks
from gallery_lib.notebooks.cells import performance_data


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [("sweeps", "x", ["`sweeps`", "`sweep`"]), ("sweep", 3, ["sweep=3", "text"])],
)
def test_parameters_that_make_no_sense_are_refused(
    name: str, value: object, shown: list[str]
) -> None:
    with refused(name, *shown):
        performance_data.settings({name: value})


def test_a_place_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with refused("sweep", tmp_path / "gone"):
        performance_data.read(performance_data.settings({"sweep": str(tmp_path / "gone")}))


def test_what_was_not_measured_is_named_and_other_models_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = synthetic_sweep.write(
        tmp_path, [synthetic_sweep.cell("my_model", hosts) for hosts in (1, 2)]
    )
    sweep = performance_data.read(performance_data.settings({"sweep": str(folder)}))
    performance_data.show_model(sweep, "vgg16")
    said = capsys.readouterr().out
    assert "Made up, for a test." in said and "1 recorded, 0 derived; of 1 × a made-up GPU" in said
    assert (
        "**Not measured**: vgg16 on 1, 2, 4, 8 hosts (no reason recorded; vgg16 needs about 30 GiB"
        in said
    )
    performance_data.show_other_models(sweep)
    assert "not one of the gallery's" in capsys.readouterr().out
    performance_data.show_advice(sweep)
    said = capsys.readouterr().out
    assert "| my_model | 1.67× | not measured | not measured | yes | 2 hosts 1.10× |" in said


def test_without_a_sweep_every_cell_says_not_measured_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = performance_data.read(performance_data.settings({"sweep": str(tmp_path)}))
    assert "python3 benchmarks/network.py sweep timelines/*.json" in capsys.readouterr().out
    performance_data.show_scatter(sweep)
    performance_data.show_model(sweep, "vgg16")
    performance_data.show_other_models(sweep)
    performance_data.show_advice(sweep)
    assert (
        capsys.readouterr().out.count("**Not measured**: no sweep was read above.") == 8
    )  # in Markdown and as plain text


def test_a_sweep_in_which_nothing_fitted_has_a_table_and_no_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = performance_data.read(
        performance_data.settings({"sweep": str(synthetic_sweep.write(tmp_path, []))})
    )
    performance_data.show_scatter(sweep)
    said = capsys.readouterr().out
    assert "| timelines | none was replayed |" in said
    assert "| alexnet | 1 | not measured | not measured | no reason recorded |" in said
    assert (
        "| vgg16 | 8 | not measured | not measured | vgg16 needs about 30 GiB" in said
        and "The tuner gains" not in said
    )


def shown(cells: list[Any]) -> tuple[str, list[str]]:
    """Return all Markdown, and the alternative text of each figure."""
    outputs = [
        output for cell in cells for output in cell.outputs if output.output_type == "display_data"
    ]
    alternatives = [
        output.metadata["image/png"]["alt"] for output in outputs if "image/png" in output.data
    ]
    return "\n".join(
        output.data["text/markdown"] for output in outputs if "text/markdown" in output.data
    ), alternatives


@pytest.mark.slow
def test_the_notebook_shows_every_model_of_a_sweep_and_names_the_others(
    checkout: Path, tmp_path: Path, kernel: dict[str, str]
) -> None:
    folder = synthetic_sweep.write(tmp_path / "sweep")
    executed = execute(
        checkout / "notebooks" / "performance_data.ipynb",
        tmp_path / "executed",
        {"sweep": str(folder)},
        kernel,
    )
    text, alternatives = shown(executed.code)
    titles = [tasks.get(model).title for model in synthetic_sweep.MODELS]
    for words, begin in zip(alternatives, ["The tuner gains up to 1.70×", *titles], strict=True):
        assert words.startswith(begin)
    assert "| rate of each host's link | 10gbit, emulated |" in text and "| stretch | 8 |" in text
    assert "| alexnet | 1.67× | 2.50× | 3.33× | yes |" in text  # more hosts pay
    assert "| hf_Bert | 8 | not measured | not measured | no reason recorded |" in text
    assert text.count("**Not measured**") == len(tasks.names()) - len(synthetic_sweep.MODELS)
    assert (
        "| precision | O1 (bfloat16) |" in text
        and "| batch size of a process | 32 (the task's own: 128) |" in text
    )

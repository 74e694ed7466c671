"""The notebook performance_data: its parameter, and what it shows of a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from executed_notebook import execute
from refusal import refused

from gallery_lib.notebooks.cells import performance_data
from gallery_lib.report import communication

HEADER = "model,hosts,ranks,batch_size,timeline,ddp_step_seconds,chosen,chosen_step_seconds,"
HEADER += "acc_ratio,acc_ratio_low,acc_ratio_high,ddp_acc,rate\n"
LINES = (
    "resnet50,1,2,8,recorded,0.01,ddp,0.01,1.0,1.0,1.0,1.0,1gbit\n"
    "resnet50,2,2,8,recorded,0.016,views,0.0128,1.25,1.2,1.3,0.625,1gbit\n"
    "vgg16,1,2,8,recorded,0.1,ddp,0.1,1.0,1.0,1.0,1.0,1gbit\n"
    "vgg16,2,2,8,recorded,0.5,views,0.49,1.02,0.98,1.05,0.2,1gbit\n"
)


def table(folder: Path, lines: str = LINES) -> performance_data.PerformanceDataConfig:
    """Return the parameters that show a table of these lines."""
    path = folder / "table.csv"
    path.write_text(HEADER + lines)
    path.with_suffix(".json").write_text('{"what_it_is": "Made up, for a test."}')
    return performance_data.settings({"table": str(path)})


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [("tables", "x", ["`tables`", "`table`"]), ("table", 3, ["table=3", "text"])],
)
def test_parameters_that_make_no_sense_are_refused(
    name: str, value: object, shown: list[str]
) -> None:
    with refused(name, *shown):
        performance_data.settings({name: value})


@pytest.mark.parametrize("lines", ["resnet50,two,2\n", "resnet50,2\n"])
def test_what_is_no_table_is_refused(tmp_path: Path, lines: str) -> None:
    with refused("table", "table.csv"):
        performance_data.read(table(tmp_path, lines))
    with refused("table", "gone.csv"):
        performance_data.read(performance_data.settings({"table": str(tmp_path / "gone.csv")}))


def test_rates_gains_and_scaling_of_every_line_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = performance_data.read(table(tmp_path))
    assert "Made up, for a test." in capsys.readouterr().out
    rows = communication.cell_rows(cells)
    assert rows[2][:4] == ["resnet50", "2", "2,000 samples/s", "2,500 samples/s"]
    assert rows[2][5:] == ["faster", "0.62", "views"]
    assert communication.model_rows(cells)[1:] == [
        ["resnet50", "2 hosts 1.25×", "yes", "2 hosts 1.25×"],
        ["vgg16", "2 hosts 0.40×", "no", "nowhere"],
    ]
    title = communication.scatter(cells).title.splitlines()
    assert title == ["The tuner gains up to 1.25× (ResNet-50, 2 hosts)", communication.REPLAY]
    unsure = communication.scatter([cell for cell in cells if cell.model == "vgg16"])
    assert unsure.title.startswith("The tuner gains nothing that is certain")
    axes = communication.scatter(cells).draw().axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["1 host", "2 hosts"]


@pytest.mark.slow
def test_the_notebook_shows_the_published_table(
    checkout: Path, tmp_path: Path, kernel: dict[str, str]
) -> None:
    notebook = checkout / "notebooks" / "performance_data.ipynb"
    executed = execute(notebook, tmp_path / "executed", {}, kernel)
    outputs = [output for cell in executed.code for output in cell.get("outputs", [])]
    shown = [output for output in outputs if output.output_type == "display_data"]
    text = "\n".join(output.data.get("text/markdown", "") for output in shown)
    (figure,) = [output for output in shown if "image/png" in output.data]
    assert figure.metadata["image/png"]["alt"].startswith("The tuner gains up to 1.30×")
    assert "| tts_angular | 8 |" in text and "| tts_angular | 2 hosts " in text

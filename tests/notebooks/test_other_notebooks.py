"""The notebooks of no task: communication, data_parallel and performance_data."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from executed_notebook import execute
from refusal import refused

from gallery_lib.errors import RunFailed
from gallery_lib.launcher.job import run_script, shown_script_command
from gallery_lib.measure.comparison.parity import LOSS_TOLERANCE
from gallery_lib.notebooks.cells import communication, data_parallel, performance_data
from gallery_lib.report.communication import REPLAY, Cell, cell_rows, model_rows, scatter
from gallery_lib.system import hardware

DEVICES = hardware.gpu_count() or hardware.cores()
NOTHING_LOGGED = {"images": 16, "batch_size": 8, "log_steps": 5, "processes": 1}


@pytest.mark.parametrize(
    ("notebook", "parameters", "shown"),
    [
        (communication, {"host": 3}, ["`host`", "`hosts`"]),
        (communication, {"hosts": 1}, ["hosts=1", "2 and 8"]),
        (communication, {"rounds": "many"}, ["'many'", "whole number"]),
        (communication, {"rate": "fast"}, ["'fast'", "100mbit"]),
        (communication, {"rate": 200}, ["rate=200", "text"]),
        (data_parallel, NOTHING_LOGGED, [16, "log_steps=5"]),
        (data_parallel, {"processes": DEVICES + 1}, [DEVICES + 1, f"{DEVICES} device"]),
        (performance_data, {"tables": "x"}, ["`tables`", "`table`"]),
        (performance_data, {"table": 3}, ["table=3", "text"]),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    notebook: ModuleType, parameters: dict[str, Any], shown: list[object]
) -> None:
    with refused(next(iter(parameters)), *shown):
        notebook.settings(parameters)


# --------------------------------------------------------------------------------------------------
# communication


_WITHOUT_NAMESPACES = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
# Words before a command that is to find a kernel which makes no network namespace.
LIMITED = ["unshare", "--user", "--map-root-user", "sh", "-c", _WITHOUT_NAMESPACES, "sh"]


@pytest.fixture
def limited_kernel(kernel: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return a kernel `gallery` on a machine that makes no network namespaces."""
    if (tried := subprocess.run([*LIMITED, "true"], capture_output=True, text=True)).returncode:
        pytest.skip(
            f"the limit of namespaces cannot be set here ({tried.stderr.strip()}): run where "
            "user namespaces are allowed"
        )
    installed = next(Path(kernel["JUPYTER_PATH"]).rglob("kernel.json"))
    description = json.loads(installed.read_text())
    target = tmp_path / "jupyter" / "kernels" / "gallery" / "kernel.json"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps({**description, "argv": [*LIMITED, *description["argv"]]}))
    return {**kernel, "JUPYTER_PATH": str(tmp_path / "jupyter")}


@pytest.mark.slow
@pytest.mark.several_cores
def test_without_a_lab_the_notebook_says_not_measured_and_goes_on(
    checkout: Path, tmp_path: Path, limited_kernel: dict[str, str]
) -> None:
    notebook = checkout / "notebooks" / "communication.ipynb"
    executed = execute(notebook, tmp_path / "executed", {"epochs": 1}, limited_kernel)
    text, figures = executed.shown()
    assert text.count("**Not measured**: the kernel lets this user make no network namespaces") == 1
    assert "| int8 | 0." in text and not figures


# --------------------------------------------------------------------------------------------------
# data_parallel


def test_a_script_is_shown_as_one_would_type_it_and_its_lines_or_its_error_come_back(
    tmp_path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "prints.py"
    script.write_text("import sys\nprint('got', *sys.argv[1:])\n")
    assert run_script(script, ["--steps=3"]) == ["got --steps=3"]
    assert "$ python3 prints.py --steps=3" in capsys.readouterr().out
    script.write_text("print('so far')\nraise ValueError('planted')\n")
    with pytest.raises(RunFailed, match=r"(?s)exit code 1.*so far.*ValueError: planted"):
        run_script(script)
    own, shown = checkout / "notebooks/data_parallel/several.py", "notebooks/data_parallel/several"
    for processes, words in ((None, "python3"), (4, "torchrun --nproc_per_node=4")):
        command = shown_script_command(own, ["--epochs=2"], processes=processes)
        assert command == f"{words} {shown}.py --epochs=2"


def in_turns(processes: int, **parameters: Any) -> dict[str, Any]:
    settings = data_parallel.settings({"processes": 1, "block_steps": 2, **parameters})
    return data_parallel._scripts_in_turns(dataclasses.replace(settings, processes=processes))


def test_every_script_takes_turns_and_mixed_precision_also_on_one_process() -> None:
    scripts = in_turns(2)
    assert {name: (one.processes, one.starts_like) for name, one in scripts.items()} == {
        "native": (None, None),
        "accelerated": (None, "native"),
        "several (2)": (2, None),
        "mixed_precision (1)": (None, "native"),
        "mixed_precision (2)": (2, "several (2)"),
    }
    assert scripts["accelerated"].tolerance == LOSS_TOLERANCE["O0"]
    assert len({tuple(script.arguments) for script in scripts.values()}) == 1
    alone = in_turns(1)
    assert list(alone) == ["native", "accelerated", "several (1)", "mixed_precision (1)"]
    assert alone["several (1)"].starts_like == "native"
    for images, taken in ((128, 128), (100, 96), (8, 32)):  # whole batches, and four at least
        for script in in_turns(1, images=images, batch_size=8).values():
            assert script.arguments[0] == f"--images={taken}"


# --------------------------------------------------------------------------------------------------
# performance_data


TABLE = """\
model,hosts,ranks,batch_size,timeline,ddp_step_seconds,chosen,chosen_step_seconds,\
acc_ratio,acc_ratio_low,acc_ratio_high,ddp_acc,rate
resnet50,1,2,8,recorded,0.01,ddp,0.01,1.0,1.0,1.0,1.0,1gbit
resnet50,2,2,8,recorded,0.016,views,0.0128,1.25,1.2,1.3,0.625,1gbit
vgg16,1,2,8,recorded,0.1,ddp,0.1,1.0,1.0,1.0,1.0,1gbit
vgg16,2,2,8,recorded,0.5,views,0.49,1.02,0.98,1.05,0.2,1gbit
"""


def read_table(path: Path, text: str) -> list[Cell]:
    path.write_text(text)
    path.with_suffix(".json").write_text('{"what_it_is": "Made up, for a test."}')
    return performance_data.read(performance_data.settings({"table": str(path)}))


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    outside = "resnet50,2,2,8,recorded,0.016,views,0.0128,1.25,1.3,1.4,0.625,1gbit\n"
    for line in ("resnet50,two,2\n", "resnet50,2\n", outside):  # of its interval
        with refused("table", "table.csv"):
            read_table(tmp_path / "table.csv", f"{TABLE.splitlines()[0]}\n{line}")
    with refused("table", "gone.csv"):
        performance_data.read(performance_data.settings({"table": str(tmp_path / "gone.csv")}))


def test_rates_gains_and_scaling_of_every_line_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = read_table(tmp_path / "table.csv", TABLE)
    assert "Made up, for a test." in capsys.readouterr().out
    rows = cell_rows(cells)
    assert rows[2][:4] == ["resnet50", "2", "2,000 samples/s", "2,500 samples/s"]
    assert rows[2][5:] == ["faster", "0.62", "views"]
    assert model_rows(cells)[1:] == [
        ["resnet50", "2 hosts 1.25×", "yes", "2 hosts 1.25×"],
        ["vgg16", "2 hosts 0.40×", "no", "nowhere"],
    ]
    title = scatter(cells).title.splitlines()
    assert title == ["The tuner gains up to 1.25× (ResNet-50, 2 hosts)", REPLAY]
    unsure = scatter([cell for cell in cells if cell.model == "vgg16"])
    assert unsure.title.startswith("The tuner gains nothing that is certain")
    axes = scatter(cells).draw().axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["1 host", "2 hosts"]

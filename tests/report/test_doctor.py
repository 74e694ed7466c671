"""`gallery doctor`: shares of the step add up, and advice follows from figures."""

import dataclasses
from pathlib import Path
from typing import Any

import made_comparison
import pytest
from refusal import check_refused_command
from tiny_task import config

from gallery_lib.cli.main import main
from gallery_lib.config import LaunchConfig
from gallery_lib.launcher.job import launch
from gallery_lib.report import doctor
from gallery_lib.report.doctor import findings
from gallery_lib.train.loop import train
from gallery_lib.train.results import Results, read_results


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return a real run of the tiny task."""
    return train(config(max_steps=12, run_dir=str(tmp_path_factory.mktemp("run"))))


def changed(measured: Results, **values: Any) -> Results:
    environment = {**measured.environment, "device": "cpu", "isa": ["avx512_bf16"]}
    seconds = {**measured.step_seconds, "p50": 1.0}
    return dataclasses.replace(
        measured, **{"environment": environment, "step_seconds": seconds, **values}
    )


@pytest.mark.slow
@pytest.mark.whole_machine
def test_the_phases_of_a_real_run_make_up_its_step(measured: Results) -> None:
    assert set(measured.phase_seconds) == {"input", "forward", "backward", "optimizer"}
    assert 0.5 < sum(measured.phase_seconds.values()) / measured.step_seconds["p50"] < 1.2
    assert "backward pass" in doctor.text(measured.config["run_dir"])


def test_advice_names_the_phase_that_limits(measured: Results) -> None:
    rest = {"forward": 0.3, "backward": 0.3}
    half = {"config": {**measured.config, "amp_level": "O1"}}
    half["environment"] = {**measured.environment, "device": "cpu", "isa": ["avx512f"]}
    for phases, values, said in (
        ({"input": 0.4, **rest}, {}, "40% of the step waits for data: try --workers 1"),
        ({"optimizer": 0.4, **rest}, {}, "40% of the step is the optimizer"),
        ({"exposed_communication": 0.3, **rest}, {}, "30% of the step is communication that no"),
        ({"input": 0.01, "optimizer": 0.05, **rest}, {}, "nothing stands out"),
        (rest, {"page_faults": 40_000.0}, "some 10% of the step are 40,000 page faults"),
        (
            rest,
            {"techniques": {"recompilations": "compiled again 3 times (9 s)"}},
            "the model was compiled again 3 times (9 s).",
        ),
        ({"input": 0.5}, half, "this CPU has no bfloat16 units"),
    ):
        run = changed(measured, phase_seconds=phases, **values)
        assert findings(run)[0].startswith(said)


def test_what_needs_a_compiler_is_said_to_want_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.hardware, "gpu_count", lambda: 0)
    monkeypatch.setattr(doctor.hardware, "cpp_compiler", lambda: "g++")
    assert ["attention", "over short sequences as plain products"] in doctor.technique_rows()
    monkeypatch.setattr(doctor.hardware, "cpp_compiler", lambda: None)
    rows = dict(doctor.technique_rows()[1:])
    assert rows["attention"] == rows["optimizer"] == "torch's own: no C++ compiler"
    assert {"compiler on the CPU", "allocator", "channels_last", "GPU"} <= set(rows)


def test_a_notebooks_folder_stands_for_the_second_variants_of_its_comparisons(
    measured: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "resnet50.ipynb").touch()
    found = made_comparison.comparison(made_comparison.FASTER, 3)
    for processes in (1, 2):
        variants = {"baseline": measured, "second": changed(measured, world_size=processes)}
        compared = dataclasses.replace(found, variants=variants)
        made_comparison.write(compared, tmp_path / str(processes))
    assert main(["doctor", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.index("1 process(es)") < said.index("2 process(es)")


def test_wrong_folders_end_with_2_and_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, damaged = tmp_path / "empty", tmp_path / "damaged" / "comparison.json"
    empty.mkdir()
    damaged.parent.mkdir()
    damaged.write_text('{"schema": 1}')
    for words, *values in (
        (["doctor", empty], empty / "results.json", "did not finish"),
        (["doctor", tmp_path / "nowhere"], f"{tmp_path}/nowhere does not exist"),
        (["doctor", damaged.parent], f"{damaged} is damaged"),
        (["doctor", damaged], f"{damaged} is a file"),
        (["show", damaged], f"{damaged} is a file"),
        (["doctor", "a", "b"], "unknown option `b`"),
    ):
        check_refused_command(main([*map(str, words)]), capsys.readouterr().err, *values)


@pytest.mark.slow
@pytest.mark.several_cores
def test_a_run_on_two_processes_tells_its_exposed_communication(tmp_path: Path) -> None:
    run = config(max_steps=12, run_dir=str(tmp_path / "two"))
    launch(run, LaunchConfig(nproc_per_node=2), show_log=False)
    phases = read_results(tmp_path / "two").phase_seconds
    assert 0 <= phases["exposed_communication"] < 10 * phases["backward"]

"""The float64 reference is stored, and used only as long as it is the right one."""

import dataclasses
from pathlib import Path

import pytest
from tiny_task import config

import gallery_lib
from gallery_lib.config import CompareConfig, LaunchConfig
from gallery_lib.console.progress import Progress
from gallery_lib.measure.comparison import untimed
from gallery_lib.measure.comparison.plan import Variant
from gallery_lib.measure.comparison.untimed import Untimed, UntimedRuns


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "references"


@pytest.mark.slow
def test_a_reference_is_kept_for_the_same_options_and_not_for_others(
    tmp_path: Path, cache: Path
) -> None:
    asked = untimed.reference_config(
        dataclasses.replace(config(), run_dir=str(tmp_path / "run")), 2, 1
    )
    assert untimed.kept_reference(asked, 1) is None
    made = untimed.run_reference(asked, LaunchConfig(), Progress(enabled=False))
    kept = untimed.kept_reference(asked, 1)
    assert kept == dataclasses.replace(made, kept=True) and len(made.losses) == 2
    assert not (tmp_path / "run").exists()
    assert made.probe["batches"] == 2 and all(
        len(norms) == 2 for norms in made.probe["square_norms"].values()
    )
    for changed in ({"seed": 1}, {"batch_size": 4}, {"max_steps": 3}):
        assert untimed.kept_reference(dataclasses.replace(asked, **changed), 1) is None
    assert untimed.kept_reference(asked, 2) is None
    untimed.reference_file(asked, 1).write_bytes(b"no reference")
    assert untimed.kept_reference(asked, 1) is None and len(list(cache.glob("*.damaged"))) == 1


def test_a_reference_depends_on_the_code_that_trains_and_a_figure_on_all_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_lib, "__file__", str(tmp_path / "__init__.py"))
    files = [tmp_path / "models" / "unet.py", tmp_path / "report" / "chart.py"]
    for file in files:
        file.parent.mkdir()
        file.write_text("")
    names = [(untimed.reference_file(config(), 1), untimed.measured_key(config()))]
    for file in files:
        file.write_text('"""A docstring."""')
        names.append((untimed.reference_file(config(), 1), untimed.measured_key(config())))
    (reference, figure), (after_model, _), (after_report, figure_after) = names
    assert reference != after_model == after_report
    assert len({figure, names[1][1], figure_after}) == 3


def test_a_kept_reference_of_other_weights_or_batches_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = {"weights": "w", "first_batches": ["a", "b"]}
    kept, new = Untimed([1.0], start, kept=True), Untimed([2.0], start)
    monkeypatch.setattr(untimed, "kept_reference", lambda *_: kept)
    monkeypatch.setattr(untimed, "run_reference", lambda *_: new)
    for probe, expected in (
        (None, kept),
        (start | {"first_batches": ["a", "b", "c"]}, kept),
        (start | {"weights": "v"}, new),
        (start | {"first_batches": ["a", "c"]}, new),
    ):
        shown = Progress(enabled=False)
        variants = {"a": Variant(config())}
        runs = UntimedRuns(variants, LaunchConfig(), CompareConfig(), tmp_path, shown, "tiny")
        assert runs.reference() is kept and runs.reference(probe) is expected
        assert runs.reference({"weights": "x", "first_batches": []}) is new  # and only once more

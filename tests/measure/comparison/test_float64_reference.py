"""The float64 reference is stored, and used only as long as it is the right one."""

import dataclasses
from pathlib import Path

import pytest
from tiny_task import config

from gallery_lib.config import LaunchConfig
from gallery_lib.measure.comparison import float64_reference
from gallery_lib.measure.comparison.float64_reference import Reference

START = {
    "weights": "w",
    "first_batches": ["a", "b"],
    "batches": 1,
    "square_norms": {},
    "samples": {},
}


@pytest.mark.slow
def test_a_reference_is_kept_for_the_same_options_and_not_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))
    asked = float64_reference.configuration(
        dataclasses.replace(config(), run_dir=str(tmp_path / "run")), 2, 1
    )
    assert float64_reference.kept_reference(asked, 1) is None
    made = float64_reference.run_reference(asked, LaunchConfig())
    kept = float64_reference.kept_reference(asked, 1)
    assert kept is not None and kept.kept and not made.kept
    assert kept.losses == made.losses and len(made.losses) == 2
    assert kept.probe == made.probe
    assert not (tmp_path / "run").exists()
    assert made.probe["batches"] == 2 and all(
        len(norms) == 2 for norms in made.probe["square_norms"].values()
    )
    for changed in ({"seed": 1}, {"batch_size": 4}, {"max_steps": 3}):
        assert float64_reference.kept_reference(dataclasses.replace(asked, **changed), 1) is None
    assert float64_reference.kept_reference(asked, 2) is None


def test_a_reference_of_other_weights_or_batches_does_not_belong_to_a_variant() -> None:
    exact = Reference([1.0], START, kept=True)
    assert exact.belongs_to(START | {"first_batches": ["a", "b", "c"]})
    assert not exact.belongs_to(START | {"weights": "v"})
    assert not exact.belongs_to(START | {"first_batches": ["a", "c"]})

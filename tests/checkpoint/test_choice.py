"""The newest whole checkpoint is chosen; damaged ones are refused by name, the one before used."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from refusal import refused

from gallery_lib.checkpoint import choice, folders, manifest, reading
from gallery_lib.checkpoint.manifest import Unusable
from gallery_lib.checkpoint.saver import Outcome, Writer
from gallery_lib.checkpoint.training_state import Parts


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder with checkpoints after steps 2 and 3."""
    model = torch.nn.Linear(4, 2)
    outcomes: list[Outcome] = []
    writer = Writer(tmp_path / "checkpoints", 2, outcomes.append)
    for step in (1, 2, 3):
        writer.save(step, Parts(model, torch.optim.AdamW(model.parameters())).state())
    writer.wait()
    assert [outcome.failure for outcome in outcomes] == ["", "", ""]
    return tmp_path / "checkpoints"


def test_the_newest_is_chosen_and_older_ones_than_those_kept_are_gone(saved: Path) -> None:
    assert [path.name for path in folders.newest_first(saved)] == ["step-00000003", "step-00000002"]
    chosen = choice.choose("auto", saved)
    assert chosen is not None and chosen.manifest.step == 3 and not chosen.refused


def test_without_any_a_training_starts_anew(tmp_path: Path) -> None:
    assert choice.choose("auto", tmp_path) is None


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["__0_0.distcp", "training.pt", "weights.safetensors", ".metadata"]
)
def test_one_flipped_bit_is_found_and_the_checkpoint_before_is_used(saved: Path, name: str) -> None:
    _flip(saved / "step-00000003" / name)
    chosen = choice.choose("auto", saved)
    assert chosen is not None and chosen.manifest.step == 2
    assert "step-00000003" in chosen.refused[0] and name in chosen.refused[0]
    # It no longer counts as one of those to keep.
    assert [path.name for path in folders.newest_first(saved)] == ["step-00000002"]


def test_a_truncated_or_missing_file_and_a_changed_manifest_are_found(saved: Path) -> None:
    newest, before = saved / "step-00000003", saved / "step-00000002"
    (newest / "rank-00000.pt").unlink()
    values = json.loads((before / "manifest.json").read_text())
    (before / "manifest.json").write_text(json.dumps({**values, "step": 7}))
    with refused("resume", "step-00000003", "rank-00000.pt", "step-00000002", "manifest.json"):
        choice.choose("auto", saved)


def test_a_folder_without_manifest_is_no_checkpoint(saved: Path) -> None:
    (saved / "step-00000003" / "manifest.json").unlink()
    with refused("resume", "manifest.json is missing", error=Unusable):
        choice.named(saved / "step-00000003")
    chosen = choice.named(saved.parent)  # the folder of a run
    assert chosen.manifest.step == 2


def test_a_newer_format_is_refused_and_not_passed_over(saved: Path) -> None:
    path = saved / "step-00000003" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99, "news": 1}))
    with refused("resume", "format 99", str(manifest.FORMAT)):
        choice.choose("auto", saved)


@pytest.mark.parametrize("words", ["nowhere", "a file", "empty"])
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path, words: str) -> None:
    (tmp_path / "a file").write_text("")
    (tmp_path / "empty").mkdir()
    with refused("resume", str(tmp_path / words)):
        choice.choose(str(tmp_path / words), None)


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("open('executed', 'w')",)


@pytest.mark.parametrize("name", [".metadata", "training.pt"])
def test_a_checkpoint_executes_no_code(
    saved: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = saved / "step-00000003"
    if name == ".metadata":
        (folder / name).write_bytes(pickle.dumps(_Evil()))
        with refused("resume", "cannot be read"):
            reading.shapes(folder)
    else:
        torch.save({"model": _Evil()}, folder / name)
        with refused("resume", "cannot be read"):
            reading.plain_state(folder / name)
    assert not (tmp_path / "executed").exists()


def test_weights_are_plain_safetensors_with_plain_names(saved: Path) -> None:
    import safetensors.torch

    weights = safetensors.torch.load_file(saved / "step-00000003" / "weights.safetensors")
    torch.nn.Linear(4, 2).load_state_dict(weights)

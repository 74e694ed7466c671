"""Digests of checkpoint files: XXH3 where xxhash is installed, SHA-256 elsewhere and before."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from refusal import refused

from gallery_lib.checkpoint import choice, digests
from gallery_lib.checkpoint.saver import Outcome, Writer
from gallery_lib.checkpoint.training_state import Parts


def saved(folder: Path) -> Path:
    """Return the folder of a checkpoint after step 1."""
    model, outcomes = torch.nn.Linear(4, 2), list[Outcome]()
    writer = Writer(folder, 2, outcomes.append)
    writer.save(1, Parts(model, torch.optim.AdamW(model.parameters())).state())
    writer.wait()
    assert [outcome.failure for outcome in outcomes] == [""]
    return folder / "step-00000001"


def files_of(path: Path) -> dict[str, dict[str, str | int]]:
    files: dict[str, dict[str, str | int]] = json.loads((path / "manifest.json").read_text())[
        "files"
    ]
    return files


def test_new_files_have_xxh3_digests(tmp_path: Path) -> None:
    xxhash = pytest.importorskip("xxhash", reason="needs xxhash")
    path = saved(tmp_path)
    for name, facts in files_of(path).items():
        content = (path / name).read_bytes()
        assert facts == {
            "bytes": len(content),
            "xxh3_128": xxhash.xxh3_128(content).hexdigest(),
        }


def test_without_xxhash_digests_are_sha256(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "xxhash", None)
    monkeypatch.setattr(digests, "NAME", digests.SHA)
    path = saved(tmp_path)
    for name, facts in files_of(path).items():
        content = (path / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    monkeypatch.undo()
    chosen = choice.choose("auto", tmp_path)
    assert chosen is not None and chosen.manifest.step == 1


def test_where_xxhash_is_missing_its_digests_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xxhash", reason="needs xxhash")
    path = saved(tmp_path)
    monkeypatch.setattr(digests, "xxhash", None)
    with refused("resume", path.name, "cannot be checked", "pip install xxhash"):
        choice.choose("auto", tmp_path)
    assert path.is_dir()


def test_a_checkpoint_of_format_1_is_read_and_its_damage_found(tmp_path: Path) -> None:
    path = saved(tmp_path)
    values = json.loads((path / "manifest.json").read_text())
    for name, facts in values["files"].items():
        facts.pop(digests.NAME)
        facts["sha256"] = hashlib.sha256((path / name).read_bytes()).hexdigest()
    values |= {"format": 1, "digest": ""}
    values["digest"] = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(values))
    chosen = choice.choose("auto", tmp_path)
    assert chosen is not None and chosen.manifest.format == 1
    weights = path / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with refused("resume", "weights.safetensors has another content"):
        choice.choose("auto", tmp_path)

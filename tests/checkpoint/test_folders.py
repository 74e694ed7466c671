"""The newest whole checkpoint is used; damaged ones are refused by name, the one before used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from refusal import refused
from torch import nn

from gallery_lib.checkpoint import Checkpoint, folders, state


def checkpoint(folder: Path, **options: object) -> Checkpoint:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    return Checkpoint(folder, model=model, optimizer=optimizer, every=1, **options)  # type: ignore


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder with checkpoints after steps 2 and 3."""
    one = checkpoint(tmp_path / "checkpoints")
    for _ in range(3):
        one.step()
    one.close()
    return tmp_path / "checkpoints"


def step_of_resume(folder: Path) -> int:
    one = checkpoint(folder)
    one.close()
    return one.steps


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_used_and_older_ones_than_those_kept_are_gone(saved: Path) -> None:
    assert names_of(saved) == ["step-00000002", "step-00000003"]
    assert step_of_resume(saved) == 3
    weights = safetensors.torch.load_file(saved / "step-00000003" / "weights.safetensors")
    nn.Linear(4, 2).load_state_dict(weights)  # under the model's plain names


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("optimizer-00000.safetensors", flip),
        ("training.pt", flip),
        ("rank-00000.pt", Path.unlink),
        ("weights.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("manifest.json", Path.unlink),
        ("manifest.json", lambda path: path.write_text(path.read_text()[:-9])),
        (
            "manifest.json",
            lambda path: path.write_text(path.read_text().replace('"step": 3', '"step": 7')),
        ),
    ],
)
def test_a_damaged_checkpoint_is_named_and_set_aside_and_the_one_before_used(
    saved: Path,
    name: str,
    damage: Callable[[Path], object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    newest, before = saved / "step-00000003", saved / "step-00000002"
    shutil.copytree(newest, saved.parent / "named")
    damage(newest / name)
    damage(saved.parent / "named" / name)
    assert step_of_resume(saved) == 2
    said = capsys.readouterr().err
    assert "step-00000003 is damaged" in said and name in said
    assert names_of(saved) == ["damaged-step-00000003", "step-00000002"]
    if name != "manifest.json":  # else it is no checkpoint
        with refused("resume", name):
            checkpoint(saved.parent / "other", resume=saved.parent / "named")
    flip(before / "training.pt")
    with refused("resume", "step-00000002", "no whole checkpoint"):
        checkpoint(saved)


def test_another_format_is_refused_and_not_passed_over(saved: Path) -> None:
    path = saved / "step-00000003" / "manifest.json"
    for number in (folders.FORMAT - 1, folders.FORMAT + 1):
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": number, "news": 1}))
        with refused("resume", f"format {number}", str(folders.FORMAT)):
            checkpoint(saved)


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    (tmp_path / "empty").mkdir()
    for words in ("nowhere", "a file", "empty"):
        with refused("resume", str(tmp_path / words)):
            checkpoint(tmp_path / "new", resume=tmp_path / words)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("open('executed', 'w')",)


def test_a_checkpoint_executes_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Evil()}, "training.pt")
    with refused("resume", "cannot be read", error=folders.Unusable):
        state.read_plain(tmp_path / "training.pt")
    assert not Path("executed").exists()


def test_what_is_named_is_left_as_it_is(saved: Path) -> None:
    flip(saved / "step-00000003" / "training.pt")
    other = checkpoint(saved.parent / "other", resume=saved.parent)  # the folder of a run
    other.close()
    assert other.steps == 2 and names_of(saved) == ["step-00000002", "step-00000003"]

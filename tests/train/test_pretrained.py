"""Weights of a file go where name and shape are the model's; all else is named and stays."""

from pathlib import Path
from typing import Any

import pytest
import torch
from refusal import refused
from safetensors.torch import save_file
from tiny_task import TASK, config
from torch import Tensor, nn

from gallery_lib.train import pretrained
from gallery_lib.train.loop import train
from gallery_lib.train.pretrained import Fit
from gallery_lib.train.results import read_results
from gallery_lib.train.session import Observer, Session


class Net(nn.Module):
    def __init__(self, seed: int, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, classes)


def trained(classes: int = 3) -> dict[str, Tensor]:
    state = Net(1, classes).state_dict()
    state["trunk.1.running_mean"].fill_(0.5)
    state["trunk.1.num_batches_tracked"].fill_(7)
    return state


def from_file(model: nn.Module, content: Any, path: Path) -> Fit:
    torch.save(content, path)
    return pretrained.load(model, str(path))


@pytest.mark.parametrize("kind", ["safetensors", "old", "DDP", "compiled", "trainer", "checkpoint"])
def test_weights_are_found_in_each_kind_of_file(kind: str, tmp_path: Path) -> None:
    state, model, path = trained(), Net(2), tmp_path / "weights.bin"
    contents: dict[str, Any] = {
        "old": state,
        "DDP": {f"module.{name}": value for name, value in state.items()},
        "compiled": {f"_orig_mod.{name}": value for name, value in state.items()},
        "trainer": {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}},
        "checkpoint": {"epoch": 3, "model": state, "optimizer": {"lr": 0.1}},
    }
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(contents[kind], path, _use_new_zipfile_serialization=kind != "old")
    fit = pretrained.load(model, str(path))
    assert fit == Fit(str(path), tensors=9, fitted=9)
    assert fit.lines() == [f"{path}: 9 of 9 tensors of the model fitted"]
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)


def test_what_does_not_fit_stays_as_drawn_and_is_named(tmp_path: Path) -> None:
    state = trained(classes=1000)
    del state["trunk.1.num_batches_tracked"]
    state["extra.weight"] = torch.ones(2)
    state["trunk.0.weight"] = state["trunk.0.weight"].bfloat16()
    model, drawn = Net(2), Net(2).state_dict()
    fit = from_file(model, state, tmp_path / "weights.pt")
    assert fit.lines() == [
        f"{tmp_path / 'weights.pt'}: 6 of 9 tensors of the model fitted",
        "of another shape in the file, so left as drawn: head.weight, head.bias",
        "not in the file, so left as drawn: trunk.1.num_batches_tracked",
        "in the file and not in the model: extra.weight",
    ]
    own = model.state_dict()
    for name in ("head.weight", "head.bias", "trunk.1.num_batches_tracked"):
        assert torch.equal(own[name], drawn[name])
    # Another precision is converted.
    assert torch.equal(own["trunk.0.weight"], state["trunk.0.weight"].float())


def test_a_tensor_of_two_names_may_stand_under_one(tmp_path: Path) -> None:
    def tied(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.ModuleDict({"inputs": nn.Embedding(5, 4), "outputs": nn.Linear(4, 5)})
        model["outputs"].weight = model["inputs"].weight
        return model

    state, model = tied(1).state_dict(), tied(2)
    del state["outputs.weight"]
    (line,) = from_file(model, state, tmp_path / "weights.pt").lines()
    assert line.endswith("3 of 3 tensors of the model fitted")


def test_weights_of_another_model_are_refused_and_change_nothing(tmp_path: Path) -> None:
    model, drawn = Net(2), Net(2).state_dict()
    with refused("pretrained", "none of the 2 tensors", "it has weight, bias", "trunk.0.weight"):
        from_file(model, nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt")
    torch.testing.assert_close(model.state_dict(), drawn, rtol=0, atol=0)


class First(Observer):
    batch: Any = None

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        self.batch = self.batch or [value.clone() for value in batch]


def test_a_run_starts_from_another_s_weights_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config(run_dir=str(tmp_path / "one"), max_steps=3, checkpoint_every="2"))
    capsys.readouterr()
    file = tmp_path / "one" / "checkpoints" / "step-00000003.pt"  # of its end
    second = config(run_dir=str(tmp_path / "two"), pretrained=str(file), max_steps=2)
    watching = First()
    results = train(second, watching)
    assert results.started_from["file"] == str(file) and results.started_from["fitted"] == 6
    assert read_results(tmp_path / "two").started_from == results.started_from
    assert f"weights  {file}: 6 of 6 tensors of the model fitted" in capsys.readouterr().out
    model = TASK.build_model()
    model.load_state_dict(torch.load(file, weights_only=True)["model"])
    assert results.loss["first"] == TASK.loss(model, watching.batch).item()


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_what_is_no_file_of_weights_is_refused_by_name_and_nothing_of_it_runs(
    tmp_path: Path,
) -> None:
    state = nn.Linear(2, 2).state_dict()
    torch.save(state, tmp_path / "whole.pt")
    save_file(state, tmp_path / "whole.safetensors")
    torch.save({"state_dict": state, "args": Trap(tmp_path / "sprung")}, tmp_path / "trap")
    torch.save(nn.Linear(2, 2), tmp_path / "a model")
    torch.save({"epoch": 3, "names": ["a"]}, tmp_path / "tensorless")
    contents = {
        "junk": b"junk, and more junk",
        "empty": b"",
        "cut": (tmp_path / "whole.pt").read_bytes()[:-200],
        "cut.safetensors": (tmp_path / "whole.safetensors").read_bytes()[:-200],
        "index.json": b'{"weight_map": {}}',
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    words = {"trap": "GLOBAL", "a model": "Linear", "tensorless": "'epoch', 'names'"}
    for name in (*contents, *words, "none", "."):
        path = tmp_path / name
        with refused("pretrained", path, words.get(name, "no file of weights")):
            pretrained.read_weights(path)
    assert not (tmp_path / "sprung").exists()

"""Weights of a file go where name and shape are the model's; all else is named and stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks
from refusal import refused
from safetensors.torch import save_file
from tiny_task import TASK, config
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.train import pretrained
from gallery_lib.train.loop import train
from gallery_lib.train.pretrained import Fit
from gallery_lib.train.results import read_results
from gallery_lib.train.session import Observer, Session

State = dict[str, Tensor]


class Batches(Observer):
    """Keep the batches of a run."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        self.batches.append([value.clone() for value in batch])


class Net(nn.Module):
    """A trunk with a batch norm, and a head of so many classes."""

    def __init__(self, seed: int, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, classes)


def trained(classes: int = 3) -> Net:
    net = Net(1, classes)
    net.trunk[1].running_mean.fill_(0.5)  # type: ignore[union-attr, operator]
    net.trunk[1].num_batches_tracked.fill_(7)  # type: ignore[union-attr, operator]
    return net


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def start(model: nn.Module, **options: str) -> Fit:
    fit = pretrained.start_from(TrainConfig(**options), model)
    assert fit is not None
    return fit


def from_file(model: nn.Module, content: Any, folder: Path, name: str = "weights.pt") -> Fit:
    torch.save(content, folder / name)
    return start(model, pretrained=str(folder / name))


WRAPPED: dict[str, Callable[[State], Any]] = {
    "of a trainer": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}},
    "twice, beside a tensor": lambda state: {
        "model": {"state_dict": state},
        "loss": torch.tensor(1.0),
    },
    "of DistributedDataParallel": lambda state: prefixed("module.", state),
    "of torch.compile and both": lambda state: {"model": prefixed("_orig_mod.module.", state)},
    "of a compiled part": lambda state: {
        name.replace("trunk.", "trunk._orig_mod."): value for name, value in state.items()
    },
    "of Lightning": lambda state: {"state_dict": prefixed("model.", state), "epoch": 1},
}


@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
def test_a_state_dict_is_found_in_what_is_wrapped_around_it(
    wrapped: Callable[[State], Any], tmp_path: Path
) -> None:
    model, state = Net(2), trained().state_dict()
    fit = from_file(model, wrapped(state), tmp_path)
    assert fit == Fit(str(tmp_path / "weights.pt"), tensors=len(state), fitted=len(state))
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)


def test_safetensors_and_torch_s_old_format_are_told_by_their_content(tmp_path: Path) -> None:
    state = trained().state_dict()
    save_file(state, tmp_path / "a.bin")
    torch.save(state, tmp_path / "b.bin", _use_new_zipfile_serialization=False)
    for name in ("a.bin", "b.bin"):
        model = Net(2)
        assert start(model, pretrained=str(tmp_path / name)).lines() == [
            f"{tmp_path / name}: 9 of 9 tensors of the model fitted"
        ]
        torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)


def test_what_does_not_fit_stays_as_drawn_and_is_named(tmp_path: Path) -> None:
    state = trained(classes=1000).state_dict()
    del state["trunk.1.num_batches_tracked"]
    state["extra.weight"] = torch.ones(2)
    state["trunk.0.weight"] = state["trunk.0.weight"].bfloat16()
    model, drawn = Net(2), Net(2).state_dict()
    fit = from_file(model, state, tmp_path)
    assert fit.lines() == [
        f"{tmp_path / 'weights.pt'}: 6 of 9 tensors of the model fitted",
        "of another shape in the file, so left as drawn: head.weight (1000×4 in the file, 3×4 in "
        "the model), head.bias (1000 in the file, 3 in the model)",
        "not in the file, so left as drawn: trunk.1.num_batches_tracked",
        "in the file and not in the model: extra.weight",
    ]
    own = model.state_dict()
    for name in ("head.weight", "head.bias", "trunk.1.num_batches_tracked"):
        assert torch.equal(own[name], drawn[name])
    # Another precision is converted.
    assert torch.equal(own["trunk.0.weight"], state["trunk.0.weight"].float())


def test_a_tensor_of_two_names_may_stand_under_one_and_a_trunk_in_a_file_of_its_own(
    tmp_path: Path,
) -> None:
    def tied(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.ModuleDict({"inputs": nn.Embedding(5, 4), "outputs": nn.Linear(4, 5)})
        model["outputs"].weight = model["inputs"].weight
        return model

    state, model = tied(1).state_dict(), tied(2)
    del state["outputs.weight"]
    assert (
        from_file(model, state, tmp_path).lines()[0].endswith("3 of 3 tensors of the model fitted")
    )
    net = Net(2)
    fit = from_file(net, trained().trunk.state_dict(), tmp_path, "trunk.pt")
    assert (fit.fitted, fit.missing) == (7, ["head.weight", "head.bias"])
    assert torch.equal(net.trunk[0].weight, trained().trunk[0].weight)


def test_weights_of_another_model_are_refused_and_change_nothing(tmp_path: Path) -> None:
    model, drawn = Net(2), Net(2).state_dict()
    with refused(
        "pretrained", "none of the 2 tensors", "it has weight (2×2)", "trunk.0.weight (4×3×3×3)"
    ):
        from_file(model, nn.Linear(2, 2).state_dict(), tmp_path)
    torch.testing.assert_close(model.state_dict(), drawn, rtol=0, atol=0)


def test_weights_of_a_run_are_those_of_its_end_or_its_newest_checkpoint(tmp_path: Path) -> None:
    with refused("init_from", tmp_path / "none"):
        pretrained.source(TrainConfig(init_from=str(tmp_path / "none")))
    with refused("init_from", tmp_path, "weights.pt", "save_weights"):
        pretrained.source(TrainConfig(init_from=str(tmp_path)))
    for name in ("step-00000009", "step-00000010", "step-x", ".step-00000011.tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        save_file(trained().state_dict(), tmp_path / "checkpoints" / name / "weights.safetensors")
    model = Net(2)
    fit = start(model, init_from=str(tmp_path))
    assert fit.file == str(tmp_path / "checkpoints" / "step-00000010" / "weights.safetensors")
    assert torch.equal(model.head.weight, trained().head.weight)
    torch.save(trained().state_dict(), tmp_path / "weights.pt")
    assert start(Net(2), init_from=str(tmp_path)).file == str(tmp_path / "weights.pt")


def test_every_rank_gets_the_weights_of_rank_0_s_file_and_its_error(tmp_path: Path) -> None:
    torch.save(
        nn.BatchNorm1d(3).state_dict() | {"weight": torch.full((3,), 5.0)}, tmp_path / "w.pt"
    )
    with Ranks(processes=2, hosts=2) as ranks:
        answers = ranks.call("starting.weights", str(tmp_path / "w.pt"), "none")
        assert answers[0] == answers[1]
        fitted, weight, tracked = answers[0]
        assert (fitted, weight, tracked) == (5, [5.0] * 3, 0)
        with refused("pretrained", "none"):
            ranks.call("starting.weights", "none", str(tmp_path / "w.pt"))


def test_a_run_goes_on_from_another_s_weights_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config(run_dir=str(tmp_path / "one"), save_weights=True))
    capsys.readouterr()
    second = config(run_dir=str(tmp_path / "two"), init_from=str(tmp_path / "one"), max_steps=2)
    watching = Batches()
    results = train(second, watching)
    file = tmp_path / "one" / "weights.pt"
    assert results.started_from["file"] == str(file) and results.started_from["fitted"] == 6
    assert read_results(tmp_path / "two").started_from == results.started_from
    assert f"weights  {file}: 6 of 6 tensors of the model fitted" in capsys.readouterr().out
    model = TASK.build_model()
    model.load_state_dict(torch.load(file, weights_only=True))
    assert results.loss["first"] == TASK.loss(model, watching.batches[0]).item()


class Trap:
    """An object whose loading would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_file_that_holds_code_is_refused_and_nothing_of_it_runs(tmp_path: Path) -> None:
    content = {"state_dict": nn.Linear(2, 2).state_dict(), "args": Trap(tmp_path / "sprung")}
    for value, shown in ((content, tmp_path / "weights.pt"), (nn.Linear(2, 2), "Linear")):
        torch.save(value, tmp_path / "weights.pt")
        with refused("pretrained", shown, "would execute its code"):
            pretrained.read_weights(tmp_path / "weights.pt", "pretrained")
    assert not (tmp_path / "sprung").exists()


def test_what_is_no_file_of_weights_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "whole.pt")
    cut = (tmp_path / "whole.pt").read_bytes()[:-200]
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "whole.safetensors")
    contents = {
        "junk": b"junk, and more junk",
        "empty": b"",
        "cut": cut,
        "cut.safetensors": (tmp_path / "whole.safetensors").read_bytes()[:-200],
        "index.json": b'{"weight_map": {}}',
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in (*contents, "none", "."):
        path = tmp_path / name
        with refused("pretrained", path):
            pretrained.check_file(TrainConfig(pretrained=str(path)))
    torch.save({"epoch": 3, "names": ["a"]}, tmp_path / "tensorless.pt")
    with refused("pretrained", "'epoch', 'names'"):
        pretrained.read_weights(tmp_path / "tensorless.pt", "pretrained")

"""What is no file of weights, or holds code, is refused with its name, and nothing of it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from refusal import refused
from safetensors.torch import save_file
from torch import nn

from gallery_lib.config import TrainConfig
from gallery_lib.train import pretrained

STATE = nn.Linear(2, 2).state_dict()


class Trap:
    """An object whose loading would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_file_that_holds_code_is_refused_and_nothing_of_it_runs(tmp_path: Path) -> None:
    content = {"state_dict": STATE, "args": Trap(tmp_path / "sprung")}
    for value, shown in ((content, tmp_path / "weights.pt"), (nn.Linear(2, 2), "Linear")):
        torch.save(value, tmp_path / "weights.pt")
        with refused("pretrained", shown, "would execute its code"):
            pretrained.read_weights(tmp_path / "weights.pt", "pretrained")
    assert not (tmp_path / "sprung").exists()


def test_what_is_no_file_of_weights_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "whole.pt")
    cut = (tmp_path / "whole.pt").read_bytes()[:-200]
    save_file(STATE, tmp_path / "whole.safetensors")
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

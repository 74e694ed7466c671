"""The change to a script that `gallery try` gives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from helpers.trials import a_trial

from gallery_lib.trial import lines

SCRIPTS = Path(__file__).with_name("scripts")


@pytest.mark.parametrize(
    ("name", "optimizers", "added"),
    [
        (
            "mnist_loop",
            ["Adam"],
            ["    model, optimizer = gallery_lib.accelerate(model, optimizer)"],
        ),
        (
            "gan",
            ["Adam", "Adam"],
            [
                "discriminator, step_d = gallery_lib.accelerate(discriminator, step_d)",
                "generator, step_g = gallery_lib.accelerate(generator, step_g)",
            ],
        ),
        ("contrastive", ["AdamW"], None),  # its weights are of two models
        ("accelerate_loop", ["AdamW"], None),  # another library drives it
        ("compiles_itself", ["AdamW"], None),
    ],
)
def test_a_change_is_given_where_its_places_are_sure(
    name: str, optimizers: list[str], added: list[str] | None
) -> None:
    compiled = name == "compiles_itself"
    model = {"name": "Net", "weights": 1, "compiled": compiled, "device": "cpu"}
    seen = a_trial(
        optimizers=[
            {"name": one, "torchs": True, "fused": False, "weights": 1} for one in optimizers
        ],
        models=[model] * len(optimizers),
    )
    change = lines.change(SCRIPTS / f"{name}.py", seen)
    if added is None:
        assert change is None
        return
    assert change is not None
    new = [line[1:] for line in change.splitlines() if line.startswith("+")][1:]
    assert new == ["import gallery_lib", *added]


_MADE = "optimizer = torch.optim.AdamW(model.parameters())"


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        (f"import torch\nmodel = Net()\n{_MADE}  # ours\ntrain()\nimport os", True),
        (f"import torch\ndef main():\n\tmodel = Net()\n\t{_MADE}", True),
        (f"import torch\nmodel = Net()\ndef main():\n    {_MADE}", False),  # a global name
        (f"import torch\ndef main(model):\n    {_MADE}", False),  # it may be called twice
        (f"import torch\nmodel = Net(); {_MADE}", False),
        (f"import torch; model = Net()\n{_MADE}", False),
        (f"model = Net()\n{_MADE}\nimport torch", False),
        (f"import torch\nmodel = Net()\n{_MADE}\n{_MADE}", False),
    ],
)
def test_a_change_can_be_run_where_it_is_given(tmp_path: Path, text: str, sure: bool) -> None:
    (tmp_path / "train.py").write_text(text)
    change = lines.change(tmp_path / "train.py", a_trial())
    assert (change is not None) == sure
    if change is not None:
        apply = ["patch", "--quiet", str(tmp_path / "train.py")]
        subprocess.run(apply, input=change + "\n", text=True, check=True, timeout=60)
        new = (tmp_path / "train.py").read_text()
        compile(new, "train.py", "exec")
        assert "model, optimizer = gallery_lib.accelerate(model, optimizer)" in new
        assert new.index("import gallery_lib") < new.index("gallery_lib.accelerate")

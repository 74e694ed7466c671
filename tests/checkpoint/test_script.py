"""A training script that is broken off and run again comes to the same weights, bit for bit."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from refusal import refused
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gallery_lib import accelerate
from gallery_lib.checkpoint import Checkpoint, folders, state
from gallery_lib.config import Config
from gallery_lib.system.processes import search_path


class Noisy(Dataset[Any]):
    """Items with noise from torch's own generator, as a script's augmentation has it."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index)) / 24 + 0.1 * torch.randn(4)


class Training:
    """A training of 3 passes of 6 steps each."""

    def __init__(self, *, workers: int = 0, generator: bool = False, backend: bool = False) -> None:
        torch.manual_seed(3)
        self.model: Any = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=18)
        data: Any = Noisy() if workers == 0 else torch.randn(24, 4)
        self.loader: Any = DataLoader(
            data,
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(5) if generator else None,
        )
        if backend:
            config = Config()
            config.compiler.enabled = False
            self.model, self.loader, self.optimizer = accelerate(
                self.model, self.loader, self.optimizer, config
            )
        self.losses: list[float] = []

    def parts(self) -> dict[str, Any]:
        names = ("model", "optimizer", "scheduler", "loader")
        return {name: getattr(self, name) for name in names}

    def run(self, checkpoint: Checkpoint | None, steps: int = 1000) -> list[float]:
        for _ in range(checkpoint.epoch if checkpoint else 0, 3):
            for batch in self.loader:
                self.optimizer.zero_grad()
                loss = self.model(batch).square().mean()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                self.losses.append(loss.item())
                if checkpoint is not None:
                    checkpoint.step()
                if len(self.losses) == steps:
                    return self.losses
        return self.losses


@pytest.mark.parametrize(
    "options",
    [{}, {"workers": 2, "generator": True}, {"backend": True, "generator": True}],
    ids=str,
)
@pytest.mark.parametrize("at", [4, 6, 9])
def test_a_training_goes_on_where_it_was_broken_off(
    tmp_path: Path, options: dict[str, Any], at: int
) -> None:
    whole = Training(**options).run(None)
    first = Training(**options)
    with_checkpoints = Checkpoint(tmp_path, **first.parts(), every=1)
    begun = first.run(with_checkpoints, at)
    with_checkpoints.close()
    assert begun == whole[:at]  # saving changes nothing
    second = Training(**options)
    torch.manual_seed(99)  # of the process that goes on
    checkpoint = Checkpoint(tmp_path, **second.parts(), every=100)
    assert checkpoint.steps == at and checkpoint.resumed_from is not None
    assert second.run(checkpoint) == whole[at:]
    checkpoint.close()


def saved_in(folder: Path) -> list[Path]:
    training = Training()
    checkpoint = Checkpoint(folder, **training.parts(), every=1)
    training.run(checkpoint, 3)
    checkpoint.close()
    return folders.newest_first(folder)


def test_the_newest_are_kept_and_a_checkpoint_of_another_training_is_refused(
    tmp_path: Path,
) -> None:
    assert [path.name for path in saved_in(tmp_path)] == ["step-00000003.pt", "step-00000002.pt"]
    parts = Training().parts()
    model, sgd = nn.Linear(4, 16), torch.optim.SGD(parts["model"].parameters(), lr=0.1)
    others: list[tuple[dict[str, Any], list[str]]] = [
        (
            {"model": model, "optimizer": torch.optim.AdamW(model.parameters())},
            ["another model", "bias"],
        ),
        ({"model": Training().model.double()}, ["another model", "torch.float64"]),
        ({"optimizer": sgd}, ["another training", "AdamW", "SGD"]),
        ({"scheduler": None}, ["OneCycleLR"]),
    ]
    for other, words in others:
        with refused("resume", *words):
            Checkpoint(tmp_path, **{**parts, **other}, every=2)
    with refused("folder", "resume='auto'"):
        Checkpoint(tmp_path, **parts, every=2, resume=None)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("open('executed', 'w')",)


def test_what_is_no_checkpoint_is_refused_by_name_and_executes_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    newest, before = saved_in(tmp_path / "saved")
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk").write_bytes(b"junk, and more junk")
    (tmp_path / "cut").write_bytes(newest.read_bytes()[:-200])
    torch.save({"model": Evil()}, tmp_path / "evil")
    torch.save({**torch.load(newest, weights_only=True), "format": 99}, tmp_path / "of another")
    for name in ("nowhere", "empty", "junk", "cut", "evil", "of another"):
        with refused("resume", str(tmp_path / name)):
            Checkpoint(tmp_path / "new", model=Training().model, every=1, resume=tmp_path / name)
    assert not Path("executed").exists()
    parts = Training().parts()
    other = Checkpoint(tmp_path / "other", **parts, every=9, resume=tmp_path / "saved")
    assert other.steps == 3
    other.close()
    newest.write_bytes(b"")
    with refused("resume", newest.name, "go on from the one before"):
        Checkpoint(tmp_path / "saved", **parts, every=1)
    newest.unlink()
    checkpoint = Checkpoint(tmp_path / "saved", **parts, every=1)
    assert (checkpoint.steps, checkpoint.resumed_from) == (2, before)
    checkpoint.close()


def test_a_second_one_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path / "generator", model=nn.Linear(3, 4), every=10)
    with refused("Checkpoint", str(tmp_path / "generator")):
        Checkpoint(tmp_path / "critic", model=nn.Linear(4, 1), every=10)
    first.close()
    Checkpoint(tmp_path / "both", model=nn.Linear(4, 1), every=10).close()


def test_a_checkpoint_holds_several_models_and_optimizers(tmp_path: Path) -> None:
    def train(folder: Path, last: int) -> list[float]:
        torch.manual_seed(0)
        nets = nn.ModuleDict({"generator": nn.Linear(3, 4), "critic": nn.Linear(4, 1)})
        optimizers = [torch.optim.Adam(net.parameters(), 0.05) for net in nets.values()]
        schedulers = [torch.optim.lr_scheduler.StepLR(one, 2) for one in optimizers]
        lists = {"optimizer": optimizers, "scheduler": schedulers}
        checkpoint, losses = Checkpoint(folder, model=nets, **lists, every=1), []
        while checkpoint.steps < last:
            output = nets["critic"](nets["generator"](torch.full((2, 3), checkpoint.steps / 20)))
            loss = (output - 1).square().mean()
            nets.zero_grad()
            loss.backward()
            for part in (*optimizers, *schedulers):
                part.step()
            losses.append(loss.item())
            checkpoint.step()
        checkpoint.close()
        return losses

    halves = train(tmp_path / "halves", 4) + train(tmp_path / "halves", 8)
    assert halves == train(tmp_path / "whole", 8) and len(halves) == 8


def test_what_error_feedback_has_kept_is_saved_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = mock.Mock()
    monkeypatch.setattr(state, "comm_state_dict", lambda model: {"kept": torch.arange(3.0)})
    monkeypatch.setattr(state, "load_comm_state_dict", load)
    for _ in range(2):
        checkpoint = Checkpoint(tmp_path, model=nn.Linear(2, 1), every=1)
        checkpoint.step()
        checkpoint.close()
    assert load.call_args.args[1]["kept"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        *(("every", every, every) for every in ("soon", "0", "-3", "1.5")),
        ("loader", [torch.ones(4)], "list"),
        ("keep", 0, 0),
    ],
)
def test_wrong_arguments_are_refused(name: str, value: Any, word: object, tmp_path: Path) -> None:
    with refused(name, word):
        Checkpoint(tmp_path, **{**Training().parts(), "every": 1, name: value})


SCRIPT = """
    import os, signal, sys, time, torch
    from gallery_lib.checkpoint import Checkpoint

    torch.manual_seed(0)
    model = torch.nn.Linear(400, 400)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(64, 400), batch_size=1)
    checkpoint = Checkpoint("saved", model=model, optimizer=optimizer, loader=loader, every=4)
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()
        if checkpoint.steps == 9 and len(sys.argv) > 1:
            exec(sys.argv[1])
        checkpoint.step()
        for wait in [*checkpoint._under_way.values()]:  # else several are due before one is written
            wait()
    print("steps", checkpoint.steps)
"""


def _script(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": search_path(), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_a_signal_ends_a_script_after_its_step_with_a_checkpoint(tmp_path: Path) -> None:
    done = _script(tmp_path, "os.kill(os.getpid(), signal.SIGTERM)")
    assert done.returncode == 75, done.stderr
    assert "SIGTERM: ended after step 10 with a checkpoint" in done.stderr
    again = _script(tmp_path)
    assert "going on from saved/step-00000010.pt, step 10" in again.stderr
    assert again.stdout == "steps 64\n"


@pytest.mark.slow
def test_a_save_that_fails_is_announced_and_the_training_goes_on(tmp_path: Path) -> None:
    """The limit of a file's size is reached, as a full disk would be."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    done = _script(tmp_path, limit)
    assert done.stdout == "steps 64\n", done.stderr
    failures = [line for line in done.stderr.splitlines() if "could not be saved" in line]
    assert len(failures) == 14 and "File too large" in failures[0]
    saved = sorted(path.name for path in (tmp_path / "saved").iterdir())
    assert saved == ["step-00000004.pt", "step-00000008.pt"]
    assert "going on from saved/step-00000008.pt" in _script(tmp_path).stderr


def test_by_time_a_checkpoint_is_saved_when_it_has_passed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, **Training().parts(), every="60min")
    checkpoint.step()
    checkpoint._began -= 3600.0
    checkpoint.step()
    checkpoint.step()
    checkpoint.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002.pt"]


@pytest.mark.parametrize("lengths", [(4, 4, 4), (4, 6, 5)])
def test_a_resume_says_so_where_the_compiler_has_made_graphs_for_several_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lengths: tuple[int, ...]
) -> None:
    class Own(nn.Linear):  # torch 2.11 does not compile a module of torch's that is alone
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    torch._dynamo.reset()
    model = Own(4, 1)
    model.compile(backend="eager")
    checkpoint = Checkpoint(tmp_path, model=model, every=1)
    for length in lengths:
        model(torch.ones(length, 4)).mean().backward()
        checkpoint.step()
    checkpoint.close()
    capsys.readouterr()
    Checkpoint(tmp_path, model=nn.Linear(4, 1), every=1).close()
    said = "graphs for batches of several shapes" in capsys.readouterr().err
    assert said == (len(set(lengths)) > 1)

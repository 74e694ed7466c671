"""`gallery try`: what it says of scripts, from a terminal, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.refusal import check_refused_command, refused
from helpers.trials import a_trial

from gallery_lib.cli.main import COMMANDS, main
from gallery_lib.config import TryConfig
from gallery_lib.report import trial as report
from gallery_lib.trial import parity, scratch, trial
from gallery_lib.trial.probe import CHECKPOINT, EVALUATION, Cycle
from gallery_lib.trial.result import Form, Trial
from gallery_lib.trial.run import Reports

SCRIPTS = Path(__file__).with_name("scripts")
TRAINING = """
    import sys
    import torch
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    {before}
    for step in range(100_000):
        x = torch.randn(32, 64)
        loss = torch.nn.functional.mse_loss(model(x), x[:, :8])
        optimizer.zero_grad()
        {backward}
        optimizer.step()
        {after}
"""


def _script(
    folder: Path, before: str = "", backward: str = "loss.backward()", after: str = ""
) -> Path:
    path = folder / "train.py"
    text = textwrap.dedent(TRAINING).format(before=before, backward=backward, after=after)
    path.write_text(text, encoding="utf-8")
    return path


def _try(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gallery_lib", "try", "--rounds=4", *words],
        **{"cwd": folder, "capture_output": True, "text": True, "timeout": 600, "check": False},
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )


@pytest.fixture
def result(tmp_path: Path) -> Any:
    """Return a function that tries a script and returns what `--json` has."""

    def tried(*words: str, folder: Path = tmp_path) -> dict[str, Any]:
        out = tmp_path / "out.json"
        done = _try(folder, f"--json={out}", *words)
        assert done.returncode == 0, done.stderr[-3000:]
        read: dict[str, Any] = json.loads(out.read_text())
        assert trial_verdict(read) in done.stdout.splitlines()[0]
        return read

    return tried


def trial_verdict(read: dict[str, Any]) -> str:
    return str(read["parity"]["why"])


# --------------------------------------------------------------------------------------------------
# In this process


@pytest.mark.parametrize(
    ("order", "length"),
    [([0] * 30, 1), ([0, 1] * 20, 2), ([0, 0, 0, 1] * 10, 4), ([0, 1, 1, 0, 1, 1, 0], 3)],
)
def test_a_cycle_is_what_repeats_itself(order: list[int], length: int) -> None:
    assert trial.cycle_of(order) == length


def test_optimizers_without_an_order_are_refused() -> None:
    with refused("command", "2 optimizers"):
        trial.cycle_of([0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1])


def test_what_is_rare_does_not_count_and_what_is_usual_does() -> None:
    usual = [Cycle(1.0, marks=[EVALUATION]) for _ in range(7)]
    rare = Cycle(9.0, marks=[EVALUATION, CHECKPOINT])
    assert trial.unusual([*usual, rare]) == {CHECKPOINT: 1}
    first, second = trial.counted([usual[:4], [*usual[4:], rare]])
    assert [one.seconds for one in first + second] == [1.0] * 5


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (
            "torchrun --nproc-per-node 2 a.py",
            "torchrun --master-port=29521 --nproc-per-node 2 a.py",
        ),
        ("torchrun --master_port 4000 a.py", "torchrun --master_port 4021 a.py"),
        ("torchrun --standalone a.py", "torchrun --standalone a.py"),
        ("accelerate launch a.py", "accelerate launch --main_process_port 29521 a.py"),
        ("python -m torch.distributed.run --master-port=1 a.py", None),
        ("python a.py --port 5", "python a.py --port 5"),
    ],
)
def test_launchers_that_are_alive_together_have_ports_of_their_own(
    words: str, own: str | None
) -> None:
    expected = own or words.replace("=1", "=22")
    assert " ".join(scratch.at_own_port(words.split(), 3)) == expected


def test_a_gradient_that_is_there_in_one_form_alone_is_no_rounding() -> None:
    def of(bias: float) -> Reports:
        gradients = {"of weight in step 1": [1.0, 1.0], "of bias in step 1": [bias, bias]}
        check = {"gradients": gradients, "weights": {}, "buffers": {}, "half": False}
        return Reports([Cycle(losses=[1.0])], [check])

    def moved() -> Reports:
        return of(1e-7)

    assert parity.compare(of(1e-7), of(1e-7), of(2e-7), moved).passed
    for bias in (0.5, float("nan")):
        assert not parity.compare(of(1e-7), of(1e-7), of(bias), moved).passed


def test_a_script_that_has_become_slower_is_told_from_a_machine_that_has() -> None:
    def of(seconds: float, pace: float, **changed: Any) -> Trial:
        form = Form(seconds, [[seconds * f for f in (0.98, 1.0, 1.03)]] * 10, [], 0.0, [])
        return a_trial(plain=form, pace=[pace] * 10, **changed)

    before = of(0.010, 0.1)
    assert report.against(before, of(0.020, 0.1), "main.json")[0] == "slower"
    assert report.against(before, of(0.005, 0.1), "main.json")[0] == "faster"
    assert report.against(before, of(0.020, 0.2), "main.json")[0] == "cannot tell"
    verdict, sentence = report.against(before, of(0.020, 0.1, threads=1), "main.json")
    assert verdict == "cannot tell"
    assert "threads was 2 then, and is 1 now" in sentence


def test_a_trial_begins_without_the_compiler() -> None:
    """Inductor takes longer to import than torch."""
    code = "import sys, gallery_lib.trial.trial; assert 'torch._inductor' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_fault_is_found_by_halving() -> None:
    names = [f"layer{number}" for number in range(9)]
    for fault in names:
        assert trial.halved(names, lambda left_out, fault=fault: fault in left_out) == fault
    assert trial.halved(names, lambda left_out: False) is None
    assert trial.halved(names, lambda left_out: {"layer1", "layer7"} <= {*left_out}) is None
    assert trial.halved([], lambda left_out: True) is None


def test_a_page_has_all_that_the_terminal_has_and_runs_nothing() -> None:
    seen = a_trial(
        script="<script>alert(1)</script>.py",
        findings=["Waiting for data takes 80% of a step."],
        change="--- train.py\n+import gallery_lib\n",
    )
    page = report.page(seen, report.verdict(seen))
    assert "<script" not in page
    assert "http" not in page
    for text in ("1.50× as fast", "Waiting for data", "+import gallery_lib", "reach 40% of"):
        assert text in page
        assert text in report.text(seen)


def test_options_end_where_the_script_begins() -> None:
    line = COMMANDS["try"].line
    config, command = line.parse(["--rounds", "6", "train.py", "--lr", "0.1", "--", "x.py"])
    assert (config, command) == (TryConfig(rounds=6), ["train.py", "--lr", "0.1", "--", "x.py"])
    config, command = line.parse(["--nproc=2", "--", "python", "-m", "train", "--rounds=3"])
    assert (config.nproc, command) == (2, ["python", "-m", "train", "--rounds=3"])


def test_a_copy_shares_what_is_large_and_what_lies_beside_until_it_is_written(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    (source / "package" / "inner").mkdir(parents=True)
    (source / "package" / "inner" / "part.py").write_text("pass")
    (source / "model.pt").write_bytes(bytes(2**21))
    (source / "images").mkdir()
    for number in range(1_001):
        (source / "images" / f"{number}.png").touch()
    (tmp_path / "data.csv").write_text("beside")
    root = tmp_path / "root"
    copy = scratch.copy_of(source, root)
    assert {p.name for p in copy.rglob("*") if p.is_symlink()} == {"model.pt", "images"}
    assert (copy / "package" / "inner" / "part.py").read_text() == "pass"
    assert (copy.parent / "data.csv").read_text() == "beside"
    writes = """
        import os, sys
        from gallery_lib.trial import scratch
        scratch.protect(sys.argv[1])
        open("model.pt", "r+b").write(b"new")
        open("images/5.png", "w").write("new")
        open("../data.csv", "a").write("new")
        os.remove("images/6.png")
        os.mkdir("images/more")
        assert os.path.getsize("model.pt") == 2**21 and len(os.listdir("images")) == 1001
    """
    command = [sys.executable, "-c", textwrap.dedent(writes), str(root)]
    subprocess.run(command, cwd=copy, check=True, timeout=60)
    assert (source / "model.pt").read_bytes()[:3] == bytes(3)
    assert (tmp_path / "data.csv").read_text() == "beside"
    assert len(list((source / "images").iterdir())) == 1_001
    assert (source / "images" / "5.png").read_text() == ""


# --------------------------------------------------------------------------------------------------
# From a terminal


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ((), ("takes a script",)),
        (("trian.py",), ("trian.py does not exist", "train.py")),
        (("--", "nothing-like-it", "train.py"), ("nothing-like-it",)),
        (("book.ipynb",), ("does not exist",)),
        (("--rounds=2", "train.py"), ("rounds", "4")),
        (("--json=nowhere/out.json", "train.py"), ("nowhere/out.json", "folder")),
        (("--html=nowhere/out.html", "train.py"), ("html=nowhere/out.html", "folder")),
        (("--html=.", "train.py"), ("html=.", "is a folder")),
        (("--against=main.json", "train.py"), ("against=main.json", "no such file")),
        (("--against=train.py", "train.py"), ("train.py", "no JSON")),
        (("--without=vector_mask", "train.py"), ("vector_mask", "vector_masks")),
        (("--nproc=2", "--", "torchrun", "train.py"), ("nproc", "torchrun")),
    ],
)
def test_a_wrong_command_is_refused(
    tmp_path: Path,
    words: tuple[str, ...],
    values: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _script(tmp_path)
    monkeypatch.chdir(tmp_path)
    check_refused_command(main(["try", *words]), capsys.readouterr().err, *values)


@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize(
    ("name", "words", "cycle", "models"),
    [
        ("gan", (), 2, ["Sequential", "Sequential"]),
        *(
            pytest.param(name, words, 1, models, marks=pytest.mark.thorough)
            for name, words, models in (
                ("mnist_loop", ("--epochs", "900"), ["Net"]),
                ("accumulation", (), ["Sequential"]),
                ("lbfgs", (), ["Sequential"]),
                ("ddp_spawn", (), ["Sequential"]),
            )
        ),
    ],
)
def test_a_script_is_the_same_training(
    result: Any, name: str, words: tuple[str, ...], cycle: int, models: list[str]
) -> None:
    before = sorted(SCRIPTS.iterdir())
    seen = result(f"{name}.py", *words, folder=SCRIPTS)
    assert seen["parity"]["passed"], seen["parity"]
    assert seen["ratio"]["low"] <= seen["ratio"]["ratio"] <= seen["ratio"]["high"]
    assert seen["cycle"] == cycle
    assert [model["name"] for model in seen["models"]] == models
    assert sorted(SCRIPTS.iterdir()) == before, "it has written into the script's folder"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (  # a gradient that is wrong by 1 % in the accelerated form
            {
                "before": "model[0].weight.register_hook(lambda g: g * "
                '(1.01 if step and "gallery_lib.plug" in sys.modules else 1.0))'
            },
            "not the same training: the norm of gradient",
        ),
        pytest.param(  # a step that is taken twice there
            {"after": 'step and "gallery_lib.plug" in sys.modules and optimizer.step()'},
            "not the same training",
            marks=pytest.mark.thorough,
        ),
        (  # a fast step that is wrong by 1 %
            {
                "before": "from gallery_lib.optim import fused_cpu as f; own = f.AdamW.step; "
                "f.AdamW.step = lambda self: ([g.__setitem__('lr', g['lr'] * 1.01) for g in "
                "self.param_groups], own(self))"
            },
            "--without=optimizer is the same training",
        ),
        pytest.param(  # compiled code of one module that is wrong by 1 %
            {
                "before": "model[1].forward = lambda x: torch.relu(x) * "
                "(1.01 if torch.compiler.is_compiling() else 1.0)"
            },
            "--without=compile is the same training; no graph pass alone explains it, in 1",
            marks=pytest.mark.thorough,
        ),
        ({"before": "torch.seed()"}, "not reproducible"),
        pytest.param(
            {"backward": "loss = loss * float('nan'); loss.backward()"},
            "its loss is nan",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"backward": "loss.expand(2).backward(torch.ones(2) / 2)"},
            "losses are hidden",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=[
        "wrong gradient",
        "doubled step",
        "wrong fast step",
        "wrong module",
        "not reproducible",
        "NaN",
        "hidden losses",
    ],
)
def test_without_parity_there_is_no_ratio(
    tmp_path: Path, result: Any, change: dict[str, str], why: str
) -> None:
    _script(tmp_path, **change)
    seen = result("train.py")
    assert why in seen["parity"]["why"]
    assert (seen["parity"]["passed"], seen["ratio"]) == (False, None)


@pytest.mark.slow
def test_habits_of_scripts_do_no_harm(tmp_path: Path, result: Any) -> None:
    """A look for torch, a model in eval mode, copies of it, a folder that must be new, files."""
    (tmp_path / "here").mkdir()
    path = _script(
        tmp_path / "here",
        before="import copy, os; model.eval(); os.makedirs('out'); open('../beside.txt').read()",
        backward="loss.backward(); best = copy.deepcopy(model)",
        after="step % 9 or torch.save(best, 'checkpoint.pth.tar')",
    )
    look = "import importlib.util\nimportlib.util.find_spec('torch')\n"
    path.write_text(look + path.read_text())
    (tmp_path / "beside.txt").write_text("data")
    own = path.with_name("checkpoint.pth.tar")
    own.write_bytes(bytes(2**21))
    seen = result(str(path), folder=tmp_path / "here")
    assert seen["parity"]["passed"], seen["parity"]
    assert [model["name"] for model in seen["models"]] == ["Sequential"]
    assert own.read_bytes() == bytes(2**21)
    assert sorted(p.name for p in path.parent.iterdir()) == ["checkpoint.pth.tar", "train.py"]


@pytest.mark.slow
@pytest.mark.thorough
def test_checkpointed_layers_and_a_layer_that_the_script_compiles(
    tmp_path: Path, result: Any
) -> None:
    _script(
        tmp_path,
        before="from torch.utils.checkpoint import checkpoint; model[2].compile(fullgraph=True); "
        "model.forward = lambda x: model[2](checkpoint(model[:2], x.requires_grad_(), "
        "use_reentrant=True))",
    )
    seen = result("train.py")
    assert seen["parity"]["passed"], seen["parity"]


_SLOW_DATA = """type("Slow", (torch.utils.data.IterableDataset,), {"__iter__":
        lambda self: (time.sleep(1e-3) or torch.randn(64) for _ in range(10**9))})()"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"after": "time.sleep(0.02)"}, "of a step is neither data, model nor optimizer"),
        pytest.param(
            {
                "before": f"import time; data = iter(torch.utils.data.DataLoader({_SLOW_DATA}, 8))",
                "after": "next(data)",
            },
            "Waiting for data takes",
            marks=pytest.mark.thorough,
        ),
        pytest.param({}, "AdamW's steps take", marks=pytest.mark.thorough),
        pytest.param(
            {"after": "torch.empty(2**25).fill_(1.0)"},
            "page faults in a step",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"after": "[float(value) for value in loss.new_zeros(2000)]"},
            "2000 tensors are read as Python numbers",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["Python", "loader", "optimizer", "page faults", "numbers"],
)
def test_what_holds_a_script_back_is_named(
    tmp_path: Path, result: Any, change: dict[str, str], finding: str
) -> None:
    _script(tmp_path, **{"before": "import time", **change})
    seen = result("--without=all", "train.py")
    assert any(finding in one for one in seen["findings"]), seen["findings"]
    assert ("Python numbers" in finding) == any("Python numbers" in f for f in seen["findings"])


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.whole_machine
def test_a_form_that_is_slower_by_5_percent_is_seen_on_a_quiet_machine(
    tmp_path: Path, result: Any
) -> None:
    _script(
        tmp_path,
        before="import time",
        after="time.sleep(0.02 + 0.00105 * ('gallery_lib.plug' in sys.modules))",
    )
    seen = result("--rounds=12", "--without=compile,optimizer,allocator", "train.py")
    assert seen["ratio"]["high"] < 1.0, seen["ratio"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("raise ValueError('no such file')", 1, ("exit code 1", "ValueError: no such file")),
        ("import torch", 2, ("too short",)),
        ("import torch, time; time.sleep(60)", 2, ("no training with torch",)),
    ],
    ids=["fails", "trains nothing", "never trains"],
)
def test_a_script_that_cannot_be_tried_says_why(
    tmp_path: Path, text: str, code: int, values: Any
) -> None:
    (tmp_path / "train.py").write_text(text)
    done = _try(tmp_path, "--patience=8", "train.py")
    assert done.returncode == code
    for value in values:
        assert value in done.stderr
    assert "gallery_lib" not in done.stderr


def _runs_the_script(process: psutil.Process) -> bool:
    try:
        return "train.py" in " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return False


@pytest.mark.slow
def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    path = _script(tmp_path)
    command = [sys.executable, "-m", "gallery_lib", "try", str(path)]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    below: set[psutil.Process] = set()
    while not any(map(_runs_the_script, below)):
        below |= set(psutil.Process(process.pid).children(recursive=True))
    process.send_signal(2)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and ("interrupted" in said or "stopped" in said)
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]

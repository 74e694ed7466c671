"""Runs that are killed, told to end, started again, and gone on with by other processes."""

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import bucket_task
import psutil
import pytest
import tiny_task
from checkpoint.kills import kill_and_go_on, results_of, started
from refusal import refused
from worker_processes import wait_until, workers_of

from gallery_lib.checkpoint import folders
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.launcher.job import start
from gallery_lib.train import checkpoints
from gallery_lib.train.resolved import resolve
from gallery_lib.train.results import Results, last_step, read_results, read_steps

TWO = LaunchConfig(nproc_per_node=2)


@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_run_killed_at_random_moments_has_the_losses_of_one_that_was_not(
    tmp_path: Path, processes: int
) -> None:
    """`python -m tests.checkpoint.kills --moments 50` is the long version."""
    seed = random.randrange(10**6)
    outcome = kill_and_go_on(tmp_path, 2, processes, seed)
    assert outcome.killed.loss == outcome.undisturbed.loss, f"seed {seed}"
    assert outcome.killed.metrics == outcome.undisturbed.metrics
    assert len(outcome.killed.interruptions) <= 2  # one is told of by the next checkpoint
    steps = [line["step"] for line in read_steps(tmp_path / "killed")]
    assert steps == sorted(set(steps))  # what was done twice is logged once


def _finished(config: TrainConfig, processes: int = 1) -> Results:
    return results_of(started(config, processes))


@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize("after", [1, 2])
def test_another_number_of_processes_takes_every_sample_of_the_pass_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """96 samples are in a pass, 4 in a batch."""
    before, steps = 3 - after, 8
    first = bucket_task.config(max_steps=steps, run_dir=str(tmp_path / "a"), checkpoint_every="8")
    remaining = (96 - steps * 4 * before) // (4 * after)
    second = bucket_task.config(
        max_steps=steps + remaining, run_dir=str(tmp_path / "b"), resume=str(tmp_path / "a")
    )
    monkeypatch.setenv("RECORD_SAMPLES", str(tmp_path / "samples"))
    (tmp_path / "samples").mkdir()
    _finished(first, before)
    results = _finished(second, after)
    files = list((tmp_path / "samples").iterdir())
    assert len(files) == before + after
    samples = [int(word) for file in files for word in file.read_text().split()]
    assert sorted(samples) == list(range(96))
    assert results.steps == steps + remaining
    assert results.interruptions[0]["processes_before"] == before
    assert results.interruptions[0]["processes"] == after


@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_compiled_run_with_batches_of_several_shapes_goes_on_bit_for_bit(
    tmp_path: Path, processes: int
) -> None:
    """The compiler makes a graph for the first shape that it sees, and another for all others."""
    values: dict[str, Any] = {"compiler_opt": True, "max_steps": 24}
    saved = {"run_dir": str(tmp_path / "whole"), "checkpoint_every": "1", "keep": 24}
    expected = _finished(bucket_task.config(**values, **saved), processes)
    for step in (1, 13):  # with one graph made before, and with all
        checkpoint = str(folders.of_step(tmp_path / "whole" / "checkpoints", step))
        values |= {"run_dir": str(tmp_path / str(step)), "resume": checkpoint}
        again = _finished(bucket_task.config(**values), processes)
        assert again.loss == expected.loss, f"resumed at step {step}"


@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize("to_rank", [False, True], ids=["launcher", "rank"])
def test_a_run_that_is_told_to_end_saves_and_says_how_it_goes_on(
    checkout: Path, tmp_path: Path, to_rank: bool
) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, str(checkout / "launch_single_task.py"), f"--run_dir={run_dir}"]
    command += [f"--model={bucket_task.__file__}:SLOW", "--amp_level=O0", "--workers=1"]
    command += ["--threads=1", "--log_interval=1", "--checkpoint_every=1000", "--nproc_per_node=2"]
    process = subprocess.Popen(
        [*command, "--max_steps=200"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: last_step(run_dir) >= 3, 120)
    if to_rank:
        workers_of(psutil.Process(process.pid))[1].send_signal(signal.SIGTERM)
    else:
        process.send_signal(signal.SIGUSR1)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 75, output + errors
    (saved,) = folders.newest_first(run_dir / "checkpoints")
    step = int(saved.stem.removeprefix("step-"))
    message = errors.splitlines()[-1]
    assert f"ended after step {step} with a checkpoint" in output
    assert "has ended with a checkpoint. Go on with: python3 " in message
    assert "--nproc_per_node=2" in message and "--resume=auto" in message
    assert "error" not in message and not list(run_dir.glob("error-rank*"))
    command += [f"--max_steps={step + 5}", "--resume=auto"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert read_results(run_dir).interruptions[0]["step"] == step


@pytest.mark.slow
@pytest.mark.several_cores
def test_a_killed_rank_leads_to_a_restart_from_the_last_checkpoint(tmp_path: Path) -> None:
    config = bucket_task.config(
        "SLOW", run_dir=str(tmp_path / "run"), max_steps=150, checkpoint_every="10", log_interval=1
    )
    job = start(config, LaunchConfig(nproc_per_node=2, max_restarts=1))
    try:
        wait_until(lambda: last_step(job.run_dir) >= 35, 120)
        # It is written beside the steps, of which five may be quicker.
        whole = job.run_dir / "checkpoints" / "step-00000030.pt"
        wait_until(lambda: whole.exists() or last_step(job.run_dir) >= 50, 120)
        workers_of(psutil.Process())[1].kill()
        results = job.result()
    finally:
        job.stop()
    assert results is not None and results.steps == 150
    (interruption,) = results.interruptions
    assert interruption["step"] >= 30 and interruption["lost_steps"] <= 2 * 10
    undisturbed = bucket_task.config("SLOW", run_dir=str(tmp_path / "whole"), max_steps=150)
    assert _finished(undisturbed, 2).loss == results.loss


@pytest.mark.thorough
@pytest.mark.slow
def test_a_checkpoint_of_either_backend_is_gone_on_with_by_the_other(tmp_path: Path) -> None:
    curves = []
    for before, after in ((False, False), (False, True), (True, False)):
        values = {"run_dir": str(tmp_path / f"{before}-{after}"), "checkpoint_every": "10"}
        _finished(tiny_task.config(max_steps=10, compiler_opt=before, **values))
        (Path(values["run_dir"]) / "results.json").unlink()
        config = tiny_task.config(max_steps=20, compiler_opt=after, resume="auto", **values)
        curves.append([loss for _, loss in _finished(config).loss["curve"]])
    assert len(curves[0]) == 20
    assert curves[1:] == [pytest.approx(curves[0], rel=1e-4)] * 2


@pytest.mark.slow
def test_what_cannot_be_gone_on_with_is_refused_in_one_line(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    values = {"run_dir": str(run_dir), "max_steps": 4, "checkpoint_every": "2"}
    _finished(bucket_task.config(**values))
    (run_dir / "results.json").unlink()
    with refused("run_dir", "--resume=auto"):
        start(bucket_task.config(**values))
    others = {"lr": 0.5, "model": "tts_angular", "batch_size": 3, "seed": 1}
    others |= {"lr_schedule": "cosine", "amp_level": "O1", "weight_decay": 0.5}
    for name, value in {**others, "max_grad_norm": 2.0}.items():
        other = bucket_task.config(**{**values, "resume": "auto", name: value})
        with refused(name, "step-00000004"):
            checkpoints.choose(resolve(other, local_processes=1, run_dir=str(run_dir)))
    earlier = run_dir / "checkpoints" / "step-00000002.pt"
    with refused("resume", earlier, "step-00000004"):
        _finished(bucket_task.config(**{**values, "resume": str(earlier)}))
    (run_dir / "checkpoints" / "step-00000004.pt").write_bytes(b"")
    with refused("resume", "step-00000004.pt", "cannot be read"):
        _finished(bucket_task.config(**{**values, "resume": "auto"}))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_schedule_goes_on_in_a_run_of_the_same_length_alone(tmp_path: Path) -> None:
    whole = {"max_steps": 4, "lr_schedule": "cosine", "lr_warmup_steps": 1, "log_interval": 1}
    expected = _finished(bucket_task.config(**whole, run_dir=str(tmp_path / "whole")))
    values = {**whole, "run_dir": str(tmp_path / "run"), "checkpoint_every": "2"}
    _finished(bucket_task.config(**values))
    (tmp_path / "run" / "results.json").unlink()
    (tmp_path / "run" / "checkpoints" / "step-00000004.pt").unlink()
    values["resume"] = "auto"
    with refused("max_steps", "6"):
        _finished(bucket_task.config(**{**values, "max_steps": 6}))
    assert _finished(bucket_task.config(**values)).loss == expected.loss
    logged = [read_steps(tmp_path / name) for name in ("run", "whole")]
    rates = [[line["learning_rate"] for line in lines] for lines in logged]
    assert rates[0] == rates[1] and len(set(rates[0])) == 4


@pytest.mark.parametrize(
    ("options", "launch_options", "name"),
    [
        ({"checkpoint_every": "often"}, {}, "checkpoint_every"),
        ({"checkpoint_every": "0"}, {}, "checkpoint_every"),
        ({"resume": "auto"}, {}, "resume"),
        ({"resume": "/no/such/folder"}, {}, "resume"),
        ({"resume": "/"}, {}, "resume"),
        ({"model": "/no/such/file.py:TASK"}, {}, "model"),
        ({}, {"max_restarts": 3}, "max_restarts"),
        (
            {"checkpoint_every": "5"},
            {"nnodes": 2, "master_addr": "192.0.2.1", "max_restarts": 1},
            "max_restarts",
        ),
        ({}, {"nnodes": 0, "master_addr": "192.0.2.1"}, "nnodes"),
    ],
)
def test_options_that_say_nothing_are_refused_before_a_start(
    options: dict[str, str],
    launch_options: dict[str, object],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GALLERY_RUNS_DIR", str(tmp_path / "runs"))
    with refused(name):
        start(bucket_task.config(**options), LaunchConfig(**launch_options))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []

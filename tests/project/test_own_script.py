"""The lines that README, the guide and the notebooks show are lines of two scripts that run."""

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from refusal import check_refused_command

from gallery_lib.data.images.mock_imagenet import MockSpec, generate

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_pages_hold_what_docs_generated_writes() -> None:
    done = python("docs/generated.py", "--check")
    assert done.returncode == 0, done.stderr


def test_the_diff_shows_every_line_that_differs() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generated
    finally:
        sys.path.pop(0)
    shown = generated.diff().splitlines()
    old, new = (
        (EXAMPLES / f"{name}.py").read_text().splitlines()[1:] for name in ("plain", "accelerated")
    )
    changed = [line for line in difflib.ndiff(old, new) if line[0] in "+-"]
    assert [line for line in shown if line[0] in "+-"] == [line[0] + line[2:] for line in changed]
    assert any("accelerate(model, loader, optimizer" in line for line in changed)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_benchmark_runs_both_scripts_which_train_the_same_and_gives_a_speed_up(
    tmp_path: Path,
) -> None:
    images, out = tmp_path / "images", tmp_path / "own-script.json"
    generate(
        images, MockSpec(classes=3, train_per_class=24, val_per_class=2), workers=1, progress=False
    )
    sizes = [
        "--rounds=2",
        "--steps=12",
        "--batch_size=8",
        "--image_size=64",
        f"--data={images / 'train'}",
    ]
    done = python("benchmarks/own_script.py", *sizes, f"--out={out}")
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(out.read_text())
    assert {form: len(runs) for form, runs in written["seconds"].items()} == {
        "plain": 2,
        "accelerated": 2,
    }
    plain, accelerated = written["losses"]["O0"]
    assert len(plain) == 2 and accelerated == pytest.approx(plain, rel=2e-3)
    assert written["speedup"]["low"] <= written["speedup"]["ratio"] <= written["speedup"]["high"]
    assert "the same training" in done.stdout


def test_a_folder_that_is_not_there_is_refused_before_anything_runs() -> None:
    done = python("benchmarks/own_script.py", "--data=/no/such/folder")
    check_refused_command(done.returncode, done.stderr, "--data /no/such/folder")

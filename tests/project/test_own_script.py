"""The lines that README, the guide and the notebooks show are lines of two scripts that run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_lib.data.images.mock_imagenet import MockSpec, generate

ROOT = Path(__file__).resolve().parents[2]


def python(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    line = [sys.executable, *words]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_pages_hold_what_docs_generated_writes() -> None:
    done = python("docs/generated.py", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.slow
def test_the_benchmark_runs_both_scripts_which_train_the_same_and_gives_a_speed_up(
    tmp_path: Path,
) -> None:
    images, out = tmp_path / "images", tmp_path / "own-script.json"
    spec = MockSpec(classes=3, train_per_class=24, val_per_class=2)
    generate(images, spec, progress=False)
    sizes = ["--rounds=2", "--steps=12", "--batch_size=8", "--image_size=64"]
    done = python("benchmarks/own_script.py", *sizes, f"--data={images}/train", f"--out={out}")
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


@pytest.mark.thorough
@pytest.mark.slow
def test_the_website_is_built_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs"]
    done = python(*words, "-d", tmp_path / "doctrees", ".", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"resnet50.html", "help.html", "reference.html"} <= {page.name for page in pages}
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="https?:|<link [^>]*href="https?:')
    assert [page for page in pages if loaded.search(page.read_text())] == []

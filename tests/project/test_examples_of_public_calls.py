"""Every public call has an example in its docstring, and the example runs as it is written.

The example is the doctest in the section `Example:`, with nothing defined beforehand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = [
    ("gallery_lib.acceleration", "accelerate", pytest.mark.slow),  # compiles
    ("gallery_lib.checkpoint.training", "Checkpoint", None),
    ("gallery_lib.cluster.lab", "Lab", pytest.mark.cluster),
    ("gallery_lib.comm.accelerate_ddp", "accelerate_ddp", None),
    ("gallery_lib.comm.accelerate_ddp", "step_in_backward", None),
    ("gallery_lib.comm.auto", "", None),
    ("gallery_lib.launcher.job", "launch", pytest.mark.slow),
    ("gallery_lib.measure.comparison.compare", "compare_backend", pytest.mark.slow),
    ("gallery_lib.optim", "OptimizerSpec", None),
    ("gallery_lib.optim.adoption", "accelerate_optimizer", None),
    ("gallery_lib.optim.grad_scaler", "GradScaler", None),
    ("gallery_lib.optim.sync_free", "AdamW", None),
]
"""Module and name of each public call, without a name for the module itself; its mark."""
RUN = """
import doctest, importlib, inspect, re, sys
module, name = sys.argv[1:]
call = importlib.import_module(module)
if name:
    call = getattr(call, name)
inherited = name and call.__module__ != module
written = inspect.cleandoc(call.__doc__ or "")
section = re.search(r"^Example:\\n((?: {4}.*\\n?|\\n)+)", written, re.M)
parser, text = doctest.DocTestParser(), "" if inherited or not section else section[1]
if not parser.get_examples(text):
    sys.exit(f"{module}.{name} has no example: a section `Example:` with `>>>` lines")
test = parser.get_doctest(text, {}, module, None, None)
sys.exit(doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed > 0)
"""


def run_example(folder: Path, module: str, name: str) -> subprocess.CompletedProcess[str]:
    """Run the example of a call in a process of its own; its package is in `folder`."""
    variables = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", RUN, module, name]
    return subprocess.run(words, capture_output=True, text=True, timeout=560, env=variables)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(module, name, id=name or module, marks=mark or ())
        for module, name, mark in EXAMPLES
    ],
)
def test_the_example_of_a_public_call_runs_as_it_is_written(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    example = run_example(checkout, module, name)
    assert example.returncode == 0, f"{example.stdout}\n{example.stderr}"

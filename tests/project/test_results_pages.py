"""The pages of benchmarks/results/ are made from the raw files and say what they say.

They refuse what no page would show.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusal import refused

from gallery_lib.measure.bench.result import Bench, Outcome, Row, write_bench

ENVIRONMENT = {
    "device": "cpu",
    "cpu": "A CPU",
    "cores": 2,
    "isa": ["avx2"],
    "memory_bytes": 2**34,
    "python": "3.11.7",
    "torch": "2.15.0+cpu",
}


def outcome(ratios: dict[str, float], **sizes: int) -> Outcome:
    """Return one task's outcome: ours over each of these, the first of which is the baseline."""
    row = Row(
        None,
        {"p50": 0.1},
        {"global": 1.0, "whole_run": 1.0},
        {"total": 3.0},
        {"host": 2**30},
        parity={"passed": True, "checks": []},
    )
    found = [(other, "ours", ratio, 0.9 * ratio, 1.1 * ratio) for other, ratio in ratios.items()]
    rows = dict.fromkeys([*ratios, "ours"], row)
    return Outcome(
        "digest",
        "2026-11-21T12:00:00+0000",
        60.0,
        None,
        sizes,
        {"float32": 3e11, "copy": 2e10},
        rows,
        found,
    )


def bench(path: Path, tasks: dict[str, Outcome], **environment: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"fused": False}
    write_bench(
        path,
        Bench(
            "bench",
            "gallery bench --out runs/x",
            options,
            {**ENVIRONMENT, **environment},
            {"torch": "2.15.0"},
            tasks,
        ),
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Write the results of one machine: two runs of small inputs, and large ones of two files.

    The second of the small runs has peers.
    """
    folder = tmp_path / "a-2core"
    bench(
        folder / "bench-small-1.json",
        {"resnet50": outcome({"eager-O1": 2.0}, batch_size=16, image_size=64)},
    )
    both = {
        "resnet50": outcome(
            {"eager-O1": 2.0, "torch.compile": 1.6, "torch.compile-best": 1.2},
            batch_size=16,
            image_size=64,
        ),
        "hf_Bert": outcome(
            {"eager-O1": 8.0, "torch.compile": 2.5}, batch_size=4, sequence_length=32
        ),
    }
    bench(folder / "bench-small-2.json", both)
    large = {
        "resnet50": outcome({"eager-O1": 1.5}, batch_size=16, image_size=224, sequence_length=128)
    }
    bench(folder / "bench-large.json", large)
    bench(
        folder / "bench-large-hf_Bert.json",
        {"hf_Bert": outcome({"eager-O1": 1.5}, batch_size=4, sequence_length=50)},
    )
    (folder / "machine.yaml").write_text(
        "name: A machine\nabout: For a test.\nfiles:\n  bench-small-1: The first.\n"
    )
    return tmp_path


@pytest.fixture
def pages(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("pages")


def test_the_committed_pages_are_up_to_date(pages: Any) -> None:
    assert pages.stale() == []


def test_runs_stand_beside_one_another_with_each_alternative_as_documented_and_at_its_best(
    pages: Any, results: Path
) -> None:
    summary = pages.pages(results)[results / "README.md"]
    lines = [line for line in summary.splitlines() if line.startswith("| ")]
    assert (
        "| ours is so many times as fast as | small inputs, run 1 | small inputs, run 2 | large "
        "inputs |" in lines
    )
    (eager,) = [line for line in lines if line.startswith("| eager O1 |")]
    # The second is √(2 × 8), the third is of both large files.
    assert [cell.strip()[:5] for cell in eager.split("|")[2:-1]] == [
        "2.00×",
        "4.00×",
        "1.50×",
    ]
    order = [line.split("|")[1].strip() for line in lines]
    assert order.index("torch.compile") + 1 == order.index("torch.compile, at its best")
    (best,) = [line for line in lines if line.startswith("| torch.compile, at its best |")]
    assert best.split("|")[2].strip() == "–" and "1.20× (1.08 to 1.32), 1 of 2 tasks" in best
    assert (
        "[A machine](a-2core/README.md) | 2 cores of A CPU (avx2), 16.0 GiB, no GPU | O1 "
        "(autocast) | 2 | 2026-11-21 |" in summary
    )


def test_a_machines_page_has_conditions_tasks_sources_and_what_was_not_run(
    pages: Any, results: Path
) -> None:
    page = pages.pages(results)[results / "a-2core" / "README.md"]
    for part in (
        "# A machine\n\nFor a test.",
        "| versions | python 3.11.7, torch 2.15.0 |",
        "| limits (matrix products by dtype, and memory) | copying 20 GB/s; float32 300 GFLOP/s |",
        (
            "| resnet50 | 16 × 64² | 100 ms → 100 ms | 2.00× (1.80 to 2.20) | "
            "1.20× (1.08 to 1.32), torch.compile, at its best |"
        ),
        "| hf_Bert | 4 × 32 tokens |",
        (
            "- [bench-small-1.json](bench-small-1.json), [every variant](bench-small-1.md): "
            "2026-11-21, `gallery bench`. The first."
        ),
        "## Not run on this machine",
        "- How soon a run starts (`python3 benchmarks/startup.py`)",
    ):
        assert part in page
    assert "- small inputs" not in page and "CUDA kernels" not in page


def test_pages_are_written_once_and_checked(pages: Any, results: Path) -> None:
    pages.write(results)
    assert pages.stale(results) == []
    assert (results / "a-2core" / "bench-small-2.png").read_bytes().startswith(b"\x89PNG")
    assert (results / "a-2core" / "bench-large.md").read_text().splitlines()[
        2
    ] == "# Large inputs: A machine"
    (results / "a-2core" / "README.md").write_text("by hand")
    (results / "a-2core" / "old.md").write_text("of a file that has gone")
    assert pages.stale(results) == ["a-2core/README.md", "a-2core/old.md"]
    pages.write(results)
    assert pages.stale(results) == []


def test_what_no_page_would_show_is_refused(pages: Any, results: Path) -> None:
    folder = results / "a-2core"
    odd = folder / "banch-small.json"
    odd.write_text(json.dumps({"date": "2026-11-21", "command": "x", "environment": ENVIRONMENT}))
    with refused(results / "a-2core/banch-small.json", "bench-small"):
        pages.pages(results)
    odd.unlink()
    bench(
        folder / "bench-small-3.json", {"resnet50": outcome({"eager-O1": 2.0})}, cpu="Another CPU"
    )
    with refused(results / "a-2core/bench-small-3.json", "Another CPU", "A CPU"):
        pages.pages(results)
    (folder / "bench-small-3.json").unlink()
    (folder / "machine.yaml").write_text("name: A machine\n")
    with refused(results / "a-2core/machine.yaml", "name", "about"):
        pages.pages(results)
    (folder / "machine.yaml").unlink()
    with refused(results / "a-2core/machine.yaml"):
        pages.pages(results)

"""The pages of benchmarks/results/ are made from the files of figures and say what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusal import refused

from gallery_lib.measure.bench.result import Bench, Outcome, Row, write_bench
from gallery_lib.measure.comparison.result import Parity

ENVIRONMENT = {
    **{"device": "cpu", "cpu": "A CPU", "cores": 2, "isa": ["avx2"], "memory_bytes": 2**34},
    **{"python": "3.11.7", "torch": "2.15.0+cpu"},
}
ABSOLUTE = re.compile(r"(^|[ =:'\"])(/|~|[A-Z]:\\)")


def bench(path: Path, tasks: dict[str, dict[str, float]], **environment: Any) -> None:
    """Write a bench: by task, ours over each of these, the first of which is the baseline."""
    figures = ({"p50": 0.1}, {"global": 1.0, "whole_run": 1.0}, {"total": 3.0}, {"host": 2**30})
    row = Row(None, *figures, parity=Parity(True, []))
    outcomes = {
        name: Outcome(
            "digest",
            "2026-11-21T12:00:00+0000",
            60.0,
            None,
            {"batch_size": 16, "image_size": 64},
            dict.fromkeys([*ratios, "ours"], row),
            [(other, "ours", ratio, 0.9 * ratio, 1.1 * ratio) for other, ratio in ratios.items()],
        )
        for name, ratios in tasks.items()
    }
    facts = {**ENVIRONMENT, **environment}
    about = ("bench", "gallery bench --out runs/x", {"fused": False}, facts, {"torch": "2.15.0"})
    write_bench(path, Bench(*about, outcomes))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Write the results of one machine: two runs of small inputs, and checkpoints."""
    folder = tmp_path / "a-2core"
    folder.mkdir()
    bench(folder / "bench-small.json", {"resnet50": {"eager-O1": 2.0}})
    both = {
        "resnet50": {"eager-O1": 2.0, "torch.compile-best": 1.2},
        "hf_Bert": {"eager-O1": 8.0, "torch.compile-best": 2.5},
    }
    bench(folder / "bench-small-2.json", both)
    shown = {"heading": "What checkpoints cost", "table": [["task", "copy"], ["vgg16", "18 ms"]]}
    other = {"date": "2026-11-22", "command": "python3 benchmarks/x.py --out y", "shown": shown}
    (folder / "checkpoints.json").write_text(json.dumps({**other, "environment": ENVIRONMENT}))
    (folder / "machine.yaml").write_text(
        "name: A machine\nabout: For a test.\nfiles:\n  bench-small: The first.\n"
    )
    return tmp_path


@pytest.fixture
def pages(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("pages")


def test_the_committed_pages_are_up_to_date(pages: Any) -> None:
    assert pages.write(check=True) == []


def test_pages_show_what_the_files_say(pages: Any, results: Path) -> None:
    written = pages.write(results)
    assert len(written) == 3 and pages.write(results, check=True) == []
    page = (results / "a-2core" / "README.md").read_text()
    for part in (
        "# A machine\n\nFor a test.\n\n2 cores of A CPU (avx2), 16.0 GiB, no GPU. Measured ",
        "| eager-O1 | 2.00× (1.80 to 2.20) | 4.00×",  # √(2 × 8)
        "| torch.compile-best | – | 1.73×",
        "| resnet50 | batch size 16, image size 64 | 100 ms → 100 ms | 2.00× (1.80 to 2.20) |",
        "[bench-small.json](bench-small.json), [every variant](bench-small.md): 2026-11-21, "
        "`gallery bench`. The first.",
        "## What checkpoints cost\n\n| task | copy |\n| --- | --- |\n| vgg16 | 18 ms |",
        "2026-11-22, `python3 benchmarks/x.py`.",
    ):
        assert part in page, part
    assert "| ours |" in (results / "a-2core" / "bench-small-2.md").read_text()
    (results / "a-2core" / "README.md").write_text("by hand")
    assert pages.write(results, check=True) == [results / "a-2core" / "README.md"]


def test_figures_of_two_processors_and_files_without_figures_are_refused(
    pages: Any, results: Path
) -> None:
    other = results / "a-2core" / "bench-small-3.json"
    bench(other, {"resnet50": {"eager-O1": 2.0}}, cpu="Another CPU")
    with refused("machine", "Another CPU", "A CPU"):
        pages.pages(results)
    other.write_text('{"speed": 3}')
    with refused(other):
        pages.pages(results)


def test_published_commands_name_no_place_of_one_machine(checkout: Path) -> None:
    files = sorted((checkout / "benchmarks" / "results").glob("*/*.json"))
    commands = {file: str(json.loads(file.read_text())["command"]) for file in files}
    assert len(commands) > 10
    assert ABSOLUTE.search("gallery bench --out /home/me/bench")
    assert ABSOLUTE.search("gallery bench --out=/home/me/bench")
    assert not {file.name: text for file, text in commands.items() if ABSOLUTE.search(text)}


def test_links_of_every_page_lead_somewhere(checkout: Path) -> None:
    for page in (checkout / "benchmarks").rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page}: {target}"

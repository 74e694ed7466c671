"""Results of machines are read whatever their shape, with what each technique brought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refusal import refused

from gallery_lib.measure.bench.result import Bench, Outcome, Row, write_bench
from gallery_lib.notebooks.site import measured
from gallery_lib.stats import Ratio

CONDITIONS = {
    "date": "2026-11-20",
    "command": "python benchmarks/gallery.py --out x.json",
    "environment": {
        "device": "cpu",
        "cpu": "A CPU",
        "cores": 8,
        "isa": [],
        "memory_bytes": 2**34,
        "python": "3",
        "torch": "2",
    },
    "load_average_before": 0.1,
}
COMPARED = {
    "processes": 1,
    "amp_level": "O0",
    "verdict": "faster",
    "speedup": {"ratio": 1.5, "low": 1.4, "high": 1.6},
    "break_even_steps": 30,
}
USED = {
    "layout": "channels_last",
    "allocator": "not applied: no glibc",
    "compiler": "inductor",
    "optimizer": "fused",
}


def write(folder: Path, name: str, content: dict[str, object]) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def test_the_committed_results_are_read_whatever_their_shape(checkout: Path) -> None:
    found = measured.read_results(checkout / "benchmarks" / "results")
    assert ("resnet50", "O1", 1, "3.02× (2.92 to 3.06)") in [
        (m.name, m.precision, m.processes, measured.speedup_text(m)) for m in found
    ]
    assert [m.told_apart for m in found].count(True) >= 4  # waterfalls


def test_files_of_two_machines_are_read_the_newest_first_and_one_without_comparisons_adds_none(
    tmp_path: Path,
) -> None:
    twice = [
        {**COMPARED, "techniques": USED},
        {**COMPARED, "processes": 2, "verdict": "not comparable", "speedup": None},
    ]
    ran = {
        "seconds": 60.0,
        "problem": None,
        "comparisons": twice,
        "date": "2026-11-19",
        "code": "abc",
    }
    gpu = {**CONDITIONS["environment"], "device": "8 × A GPU"}  # type: ignore[dict-item]
    write(
        tmp_path, "a/gallery.json", {**CONDITIONS, "parameters": {}, "notebooks": {"alexnet": ran}}
    )
    write(
        tmp_path,
        "b/gallery.json",
        {**CONDITIONS, "date": "2026-11-21", "environment": gpu, "notebooks": {"alexnet": ran}},
    )
    write(
        tmp_path,
        "b/loader.json",
        {**CONDITIONS, "images_per_second": {"ours": 612.3, "theirs": [1, 2]}},
    )
    found = measured.read_results(tmp_path)
    assert [m.machine for m in found] == ["8 × A GPU"] * 2 + ["8 cores of A CPU"] * 2
    assert [measured.speedup_text(m) for m in found] == [
        "1.50× (1.40 to 1.60)",
        "not comparable",
    ] * 2
    assert found[0].techniques == ("layout", "compiler", "optimizer") and found[0].code == "abc"


def test_a_waterfall_tells_the_techniques_apart(tmp_path: Path) -> None:
    row = Row(None, parity={"passed": True, "checks": []})
    variants = {
        "eager-O1": row,
        "layout": row,
        "allocator": row,
        "compiler": Row("does not apply: no compiler"),
    }
    ratios = [
        ("eager-O1", "layout", 1.33, 1.3, 1.4),
        ("eager-O1", "allocator", 1.34, 1.3, 1.4),
        ("layout", "allocator", 1.0, 0.9, 1.1),
    ]
    one = Outcome(
        "x",
        "2026-11-21T12:00:00+0000",
        60.0,
        None,
        {"batch_size": 16},
        {"float32": 3e11, "copy": 2e10},
        variants,
        ratios,
    )
    environment: dict[str, Any] = CONDITIONS["environment"]  # type: ignore[assignment]
    (tmp_path / "a").mkdir()
    write_bench(
        tmp_path / "a" / "waterfall-resnet50.json",
        Bench("waterfall", "gallery bench", {}, environment, {}, {"resnet50": one}),
    )
    (found,) = measured.read_results(tmp_path)
    assert (found.techniques, found.told_apart, found.verdict, found.speedup) == (
        ("layout",),
        True,
        "faster",
        Ratio(1.34, 1.3, 1.4),
    )


def test_a_file_without_conditions_is_named(tmp_path: Path) -> None:
    assert measured.read_results(tmp_path) == []
    write(tmp_path, "a/x.json", {"speed": 3})
    with refused(tmp_path / "a/x.json", "environment"):
        measured.read_results(tmp_path)

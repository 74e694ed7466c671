"""Written pages: the front page's data, results across machines, options and the module list."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gallery_lib import config, tasks
from gallery_lib.errors import InputError
from gallery_lib.measure.bench.result import Bench, Outcome, Row, write_bench
from gallery_lib.notebooks.site import documents, index, measured, notebooks, reference
from gallery_lib.notebooks.site.measured import Measurement
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


def measurement(verdict: str, **values: object) -> Measurement:
    speedup = None if verdict == "not comparable" else Ratio(1.5, 1.4, 1.6)
    return dataclasses.replace(
        Measurement(
            "resnet50", "O0", 1, speedup, verdict, ("layout", "compiler"), "2 cores of A CPU"
        ),
        **values,  # type: ignore[arg-type]
    )


# --------------------------------------------------------------------------------------------------
# The front page


def test_what_helped_is_said_only_where_the_backend_was_faster_on_one_process() -> None:
    assert index.outcome([]) == ("not measured", ("not measured",))
    assert index.outcome([measurement("faster", processes=2)]) == (
        "not measured",
        ("not measured",),
    )
    assert index.outcome([measurement("faster"), measurement("slower")])[1] == (
        "layout",
        "compiler",
    )
    assert index.outcome([measurement("faster", techniques=None)])[1] == ("not recorded",)
    assert index.outcome([measurement("not comparable")]) == (
        "not comparable, O0, on 2 cores of A CPU",
        ("not comparable",),
    )


def test_a_waterfall_says_what_helped_and_a_notebook_how_much() -> None:
    apart = measurement("faster", techniques=("compiler",), precision="O1", told_apart=True)
    assert index.outcome([apart, measurement("slower")]) == (
        "1.50× (1.40 to 1.60), O0, on 2 cores of A CPU",
        ("compiler",),
    )
    nothing = dataclasses.replace(apart, techniques=())
    assert index.outcome([nothing])[1] == ("no technique by itself",)


@pytest.mark.parametrize(("code", "stale"), [("abc", False), ("abd", True), (None, True)])
def test_a_figure_of_other_code_is_marked_stale(
    code: str | None, stale: bool, checkout: Path, tmp_path: Path
) -> None:
    one = measurement("faster", code=code)
    source = next(
        s for s in notebooks.sources(checkout / "notebooks", None) if s.name == "resnet50"
    )
    page = index.page([index.entry(source, [one], {"resnet50": "abc"}, tmp_path)], [])
    assert (
        "with another version of the code than the one here, or one that was not recorded: "
        "ResNet-50." in page
    ) == stale


def test_what_a_run_did_without_is_no_technique_that_it_used() -> None:
    done = {
        "layout": "channels_last",
        "kernels": "not used, no CUDA device",
        "optimizer": "torch's own",
        "graph breaks": "2: x",
    }
    assert measured.techniques_used(
        {**done, "compiler": "none: eager", "precision": "fp32: x"}
    ) == ("layout",)


def test_a_larger_machine_will_do_where_a_smaller_one_does() -> None:
    for name in tasks.names():
        will_do, needs = index.hardware_of(name)
        cores = [machine for machine in will_do if "cores" in machine]
        assert cores and cores[-1] == "two CPU cores, 32 GiB", name
        assert "estimated" in needs
    small, large = index.hardware_of("resnet18")[0], index.hardware_of("hf_Bart")[0]
    assert set(large) < set(small)


def test_the_front_page_lists_every_notebook_with_what_the_filter_asks_for(
    checkout: Path, batch: Path, tmp_path: Path
) -> None:
    found = notebooks.sources(checkout / "notebooks", batch)
    here = measured.measured_in_batch(batch)
    page = index.page(
        [index.entry(source, here, {}, tmp_path) for source in found], ["architecture.md"]
    )
    assert page.endswith(":caption: Project\narchitecture\n```")
    assert page.count("<li data-domain=") == len(found)
    assert 'data-domain="computer vision" data-hardware="two CPU cores, 4 GiB|' in page
    assert 'data-helped="layout|allocator|compiler|optimizer"' in page
    assert (
        page.count("<img ") == 1
        and 'src="_static/cards/resnet50.png" alt="ResNet-50: accelerated backend over PyTorch '
        "eager, 3.02×"
        in page
    )
    assert [path.name for path in tmp_path.glob("*.png")] == ["resnet50.png"]
    # The page shows the batch's machine, as its report names it.
    assert "3.02× (2.92 to 3.06), O1, on 2 cores of Intel" not in page
    assert "3.02× (2.92 to 3.06), O1, on 2 cores of A CPU" in page


def test_an_executed_notebook_that_compares_nothing_has_its_first_figure_as_picture(
    checkout: Path, batch: Path, tmp_path: Path
) -> None:
    source = next(
        s for s in notebooks.sources(checkout / "notebooks", batch) if s.name == "resnet50"
    )
    one = index.entry(source, [], {}, tmp_path)
    assert one.picture == "_static/cards/resnet50.png" and one.alternative.startswith(
        "Line plot of *two* things"
    )
    assert (tmp_path / "resnet50.png").read_bytes().startswith(b"\x89PNG")
    without = index.entry(
        dataclasses.replace(source, path=checkout / "notebooks" / "resnet50.ipynb"),
        [],
        {},
        tmp_path,
    )
    assert without.picture is None


# --------------------------------------------------------------------------------------------------
# Results and notes


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
    with pytest.raises(InputError, match=r"x.json is no file of results"):
        measured.read_results(tmp_path)


def test_every_guide_stands_in_the_navigation(checkout: Path) -> None:
    page = (checkout / "gallery_lib" / "notebooks" / "site" / "index.md.jinja").read_text()
    guides = {path.stem for path in (checkout / "docs" / "guides").glob("*.md")}
    assert {
        line.removeprefix("guides/") for line in page.splitlines() if line.startswith("guides/")
    } == guides


def test_documents_keep_their_places_and_links_to_what_is_no_page_become_words(
    tmp_path: Path,
) -> None:
    root, site = tmp_path / "root", tmp_path / "site"
    texts = {
        "CONTRIBUTING.md": (
            "See [the parser](gallery_lib/config/options.py) and [a page](https://example.org/x)."
        ),
        "SECURITY.md": "# Security",
        "benchmarks/notes/README.md": "# Notes\n\n[Second](two.md), then [first](one.md).",
        "benchmarks/notes/one.md": (
            "# One\n\n[figures](../results/a/README.md#start), [code](../../gallery_lib/train.py)"
        ),
        "benchmarks/notes/two.md": "# Two",
        "benchmarks/results/README.md": "# Results\n\n[A](a/README.md)",
        "benchmarks/results/a/README.md": "# A\n\n## Start\n\n![points](x.png) [raw](x.json)",
        "benchmarks/results/a/x.json": "{}",
        "benchmarks/results/a/x.png": "",
        "benchmarks/results/a/machine.yaml": "",
        "gallery_lib/train/loop.py": "",
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    documents.write(root, site)
    read = {
        path.relative_to(site).as_posix(): path.read_text()
        for path in site.rglob("*")
        if path.is_file()
    }
    assert set(read) == set(texts) - {
        "benchmarks/results/a/machine.yaml",
        "gallery_lib/train/loop.py",
    }
    assert read["CONTRIBUTING.md"] == "See the parser and [a page](https://example.org/x)."
    assert read["benchmarks/notes/one.md"].endswith("[figures](../results/a/README.md#start), code")
    assert read["benchmarks/notes/README.md"].endswith("```{toctree}\n:hidden:\ntwo\none\n```\n")
    assert read["benchmarks/results/README.md"].endswith(":hidden:\na/README\n```\n")
    assert "![points](x.png) [raw](x.json)" in read["benchmarks/results/a/README.md"]


# --------------------------------------------------------------------------------------------------
# Reference


def test_every_option_of_every_class_has_a_row() -> None:
    page = reference.options_page()
    classes = [value for value in vars(config).values() if isinstance(value, type)]
    assert config.TrainConfig in classes
    for cls in classes:
        for f in dataclasses.fields(cls):
            assert cls is config.Config or f"| `{f.name}` | " in page, (cls, f.name)
    assert "## `accelerate()`: `config.tune`" in page
    assert "| `prefetch` | `2` | whole number, 0 to 10000 | batches |" in page
    assert "| `amp_level` | `O0` | `O0`, `O1` |" in page
    assert {line.count(" | ") for line in page.splitlines() if line.startswith("| `")} == {4}


def test_every_module_stands_on_the_page_of_its_room(checkout: Path) -> None:
    found = reference.rooms(checkout / "gallery_lib")
    assert found["stats"] == ["gallery_lib.stats"]
    assert found["measure"][:3] == [
        "gallery_lib.measure",
        "gallery_lib.measure.bench",
        "gallery_lib.measure.bench.bench",
    ]
    page = reference.room_page("measure", found["measure"])
    assert all(f".. automodule:: {module}\n" in page for module in found["measure"])
    assert reference.about(checkout / "gallery_lib" / "console" / "table.py").startswith(
        "Tables of text"
    )

"""The front page: its entries, techniques, stale figures and pictures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gallery_lib import tasks
from gallery_lib.notebooks.site import index, measured, notebooks
from gallery_lib.notebooks.site.measured import Measurement
from gallery_lib.stats import Ratio


def measurement(verdict: str, **values: object) -> Measurement:
    speedup = None if verdict == "not comparable" else Ratio(1.5, 1.4, 1.6)
    return dataclasses.replace(
        Measurement(
            "resnet50", "O0", 1, speedup, verdict, ("layout", "compiler"), "2 cores of A CPU"
        ),
        **values,  # type: ignore[arg-type]
    )


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

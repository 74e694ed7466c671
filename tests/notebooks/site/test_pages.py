"""Documents keep their places, and options and modules have their pages."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

from gallery_lib import config
from gallery_lib.notebooks.site import documents, reference

# What stands in a Markdown link, in {doc}`page` and in {doc}`words <page>`.
_NAMED_IN_A_GUIDE = re.compile(r"(?:\]\(|\{doc\}`(?:[^`<]*<)?)([^)>`\s]+)")


def test_every_guide_stands_in_the_navigation(checkout: Path) -> None:
    page = (checkout / "gallery_lib" / "notebooks" / "site" / "index.md.jinja").read_text()
    guides = {path.stem for path in (checkout / "docs" / "guides").glob("*.md")}
    assert {
        line.removeprefix("guides/") for line in page.splitlines() if line.startswith("guides/")
    } == guides


def test_every_link_and_document_that_a_guide_names_is_a_page_of_the_site(checkout: Path) -> None:
    docs = checkout / "docs"
    named = [
        (guide.name, target)
        for guide in (docs / "guides").glob("*.md")
        for target in _NAMED_IN_A_GUIDE.findall(guide.read_text())
        if "://" not in target and not target.startswith("#")
    ]
    sources = [docs, checkout]  # the site has docs/, and benchmarks/ and notebooks/ beside it

    def is_a_page(target: str) -> bool:
        inside = os.path.normpath(f"guides/{target.partition('#')[0]}")
        if inside in ("index", "options"):  # which the build writes
            return True
        if inside.startswith(".."):
            return False
        suffixes = ("", ".md", ".ipynb")
        return any(
            (root / f"{inside}{suffix}").is_file() for root in sources for suffix in suffixes
        )

    assert len(named) > 20
    assert [(guide, target) for guide, target in named if not is_a_page(target)] == []


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

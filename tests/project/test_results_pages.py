"""The pages of benchmarks/results/ are made from the files of figures and say what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ABSOLUTE = re.compile(r"(^|[ =:'\"])(/|~|[A-Z]:\\)")


@pytest.fixture
def pages(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("pages")


def test_the_committed_pages_are_up_to_date(pages: Any) -> None:
    assert pages.write(check=True) == []


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

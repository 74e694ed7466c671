"""Quick rows of the table of faults; `python -m tests.faults --all` carries out all rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.driver import ROOT, Row, carry_out
from tests.faults.rows import ROWS


@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.quick], ids=lambda row: f"{row.kind}, {row.name}"
)
def test_a_fault_ends_as_the_table_says(row: Row, tmp_path: Path) -> None:
    seen = carry_out(row, tmp_path / "work", ROOT / ".cache")
    assert seen.wrong == (), seen.message


def test_the_page_tells_of_every_row() -> None:
    page = Path(__file__).with_name("FAULTS.md").read_text()
    assert [row.name for row in ROWS if f"| {row.name} |" not in page] == []

"""Pages of docs/gallery/: notebooks with the outputs of one batch, on a machine that they name."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_committed_pages_have_their_notes_and_figures_and_no_paths(checkout: Path) -> None:
    folder = checkout / "docs" / "gallery"
    texts = [path.read_text() for path in folder.glob("*.md")]
    assert len(texts) > 10
    for text in texts:
        assert "**Run on " in text
        assert not re.search(r"[=\s\"'(](/(?:home|root|tmp|work|Users|mnt|var)/\S+)", text)
        for alternative, file in re.findall(r"^!\[([^\]]*)\]\(([^)]+)\)$", text, re.MULTILINE):
            assert len(alternative) >= 30 and (folder / file).stat().st_size < 400_000

"""Commands in published results name no absolute path: they are to be repeated elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

ABSOLUTE = re.compile(r"(^|[ =:'\"])(/|~|[A-Z]:\\)")


def test_published_commands_name_no_place_of_one_machine(checkout: Path) -> None:
    files = sorted((checkout / "benchmarks" / "results").glob("*/*.json"))
    contents = {file: json.loads(file.read_text(encoding="utf-8")) for file in files}
    commands = {
        file.name: content["command"]
        for file, content in contents.items()
        if isinstance(content, dict) and "command" in content
    }
    assert len(commands) > 10
    assert ABSOLUTE.search("gallery bench --out /home/me/bench")
    assert ABSOLUTE.search("gallery bench --out=/home/me/bench")
    assert not {name: text for name, text in commands.items() if ABSOLUTE.search(str(text))}

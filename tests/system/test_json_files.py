"""JSON files are read against a declared shape, and a misfit is named with its place."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from refusal import refused

from gallery_lib.system.files import read_json, write_json


@dataclasses.dataclass(frozen=True)
class Inner:
    name: str
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"]
    rows: dict[str, Inner]
    pairs: list[tuple[int, float | None]]
    note: str | None = None


WHOLE = {"kind": "a", "rows": {"x": {"name": "n", "seconds": 1}}, "pairs": [[1, 2.5], [2, None]]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"more": 1}, ""),
        ({"kind": "c"}, "kind: Invalid enum value 'c'"),
        ({"rows": []}, "rows: Expected `object`, got `array`"),
        ({"rows": {"x": {}}}, "rows[...]: Object missing required field `name`"),
        ({"rows": {"x": {"name": 5}}}, "rows[...].name: Expected `str`, got `int`"),
        ({"pairs": [[1]]}, "pairs[0]: Expected `array` of length 2, got 1"),
        ({"pairs": [[1, "x"]]}, "pairs[0][1]: Expected `float | null`, got `str`"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    write_json(path, {**WHOLE, **changes})
    if not said:
        whole = Outer("a", {"x": Inner("n", 1)}, [(1, 2.5), (2, None)])
        assert read_json(path, Outer, again="") == whole
        return
    with refused(said.partition(":")[0], path, said, "Run it again."):
        read_json(path, Outer, again="Run it again.")


@pytest.mark.parametrize(
    "content", ["", "{", "[1, NaN]", "[Infinity]", "[1e999]", "\xff", "[" * 100_000]
)
def test_what_is_no_json_is_one_error_with_the_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content.encode("latin-1"))
    with refused(path, "no JSON", "Run it again."):
        read_json(path, list, again="Run it again.")


def test_another_schema_is_refused_and_a_missing_file_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(FileNotFoundError):
        read_json(path, list, again="")
    write_json(path, {"schema": 7, "name": "n"})
    with refused("schema", path, "7"):
        read_json(path, Inner, schema=1, again="")
    assert read_json(path, Inner, schema=7, again="") == Inner("n")


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, [1])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, [float("nan")])
    assert json.loads(path.read_text()) == [1] and list(tmp_path.iterdir()) == [path]

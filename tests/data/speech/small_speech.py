"""Mock speech of a few words, and the command that makes it."""

from __future__ import annotations

import sys
from pathlib import Path

from gallery_lib.data.speech.mock_speech import SpeechSpec

TINY = SpeechSpec(characters=12, words=10, train=24, val=8)
COMMAND = [
    sys.executable,
    str(Path(__file__).resolve().parents[3] / "data_prep" / "mock_speech.py"),
]


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }

"""Mock speech of a few words, and the command that makes it."""

from __future__ import annotations

from pathlib import Path

from gallery_lib.data.speech.mock_speech import SpeechSpec

TINY = SpeechSpec(characters=12, words=10, train=24, val=8)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }

"""Six utterances of three speakers, as a Kaldi folder and as its list."""

from __future__ import annotations

from pathlib import Path

import kaldiio
import numpy as np

from gallery_lib.data.speech import features
from gallery_lib.data.speech.features import list_utterances

ARRAYS = {
    f"u{i}": np.random.default_rng(i).normal(size=(10 + i, 4)).astype(np.float32) for i in range(6)
}
SPEAKER = {name: f"s{i // 2}" for i, name in enumerate(ARRAYS)}


def kaldi(folder: Path, **options: object) -> Path:
    """Return the same six utterances as a Kaldi folder."""
    folder.mkdir()
    kaldiio.save_ark(str(folder / "feats.ark"), ARRAYS, scp=str(folder / "feats.scp"), **options)
    (folder / "utt2spk").write_text(
        "".join(f"{name} {speaker}\n" for name, speaker in SPEAKER.items())
    )
    (folder / "text").write_text("".join(f"{name}\tthe words of {name}\n" for name in ARRAYS))
    return folder


def list_speakers(folder: Path) -> list[features.Utterance]:
    return list_utterances(folder, "utt2spk", "make --it")

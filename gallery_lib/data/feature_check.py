"""Can these folders of features be trained on, and what is wrong with them if not?

ROOT/train and ROOT/val hold a manifest or Kaldi's files (feature_manifest.py). The headers of all feature files are
read, and the values of some. For speaker verification every speaker needs two utterances, and no speaker may be in
both splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gallery_lib.data.feature_manifest import KaldiLabels, Utterance, check, list_utterances, statistics, with_frames
from gallery_lib.data.speakers import by_speaker, refuse_common_speakers

SPLITS = ("train", "val")


@dataclass(frozen=True)
class FeatureSummary:
    """What a checked folder holds: utterances, labels and hours (of 10 ms frames) by split, and how the values lie."""

    root: Path
    utterances: dict[str, int]
    labels: dict[str, int]
    frames: dict[str, int]
    dims: int
    mean: float
    deviation: float

    def __str__(self) -> str:
        splits = "; ".join(
            f"{split}: {count} utterances, {self.labels[split]} different labels, {self.frames[split]} frames"
            for split, count in self.utterances.items()
        )
        return f"{self.root}: {splits}; {self.dims} values a frame, mean {self.mean:.2f}, deviation {self.deviation:.2f}; all fine"


def check_features(
    root: Path | str, kaldi_labels: KaldiLabels, dims: int | None, make_command: str, *, full: bool = False
) -> FeatureSummary:
    """Check both splits of `root` and say what they hold; labels `utt2spk` are speakers, `text` transcripts.

    Raises InputError for the first thing that is wrong. `dims` None: whatever the first utterance has.
    """
    root = Path(root).expanduser().absolute()
    listed: dict[str, list[Utterance]] = {}
    for split in SPLITS:
        listed[split] = list_utterances(root / split, kaldi_labels, make_command)
        dims = check(listed[split], dims, full=full)
        listed[split] = with_frames(listed[split])
    labels = {split: {utterance.label for utterance in utterances} for split, utterances in listed.items()}
    if kaldi_labels == "utt2spk":
        for split, utterances in listed.items():
            by_speaker(utterances, 1, root / split)
        refuse_common_speakers(labels["train"], labels["val"], root)
    mean, deviation = statistics(listed["train"])
    assert dims is not None
    return FeatureSummary(
        root,
        {split: len(utterances) for split, utterances in listed.items()},
        {split: len(found) for split, found in labels.items()},
        {split: sum(utterance.frames or 0 for utterance in utterances) for split, utterances in listed.items()},
        dims,
        float(mean.mean()),
        float(deviation.mean()),
    )

"""Check that folders of acoustic features can be trained on, and name the first fault if not.

ROOT/train and ROOT/val hold a manifest or Kaldi's files (feature_manifest.py). The check reads the
headers of all feature files, and the values of some. For speaker verification every speaker needs
two utterances, and no speaker may be in both splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.data.folder_walk import printable
from gallery_lib.data.speech.characters import Characters, tidy, unknown_notice
from gallery_lib.data.speech.feature_files import (
    check,
    refuse_missing_files,
    statistics,
    with_frames,
)
from gallery_lib.data.speech.feature_manifest import KaldiLabels, Utterance, list_utterances
from gallery_lib.errors import InputError

SPLITS = ("train", "val")
PER_ITEM = 2  # utterances of a speaker in one item


@dataclass(frozen=True)
class FeatureSummary:
    """Contents of a checked folder: sizes by split, and the distribution of the feature values.

    `utterances`, `labels` (different ones) and `frames` are counts by split. `mean` and `deviation`
    are averages over the `dims` values of a training frame.
    """

    root: Path
    utterances: dict[str, int]
    labels: dict[str, int]
    frames: dict[str, int]
    dims: int
    mean: float
    deviation: float
    notices: tuple[str, ...] = ()  # lines that a run prints as well

    def __str__(self) -> str:
        splits = "; ".join(
            f"{split}: {count} utterances, {self.labels[split]} different labels, "
            f"{self.frames[split]} frames"
            for split, count in self.utterances.items()
        )
        values = f"{self.dims} values a frame, mean {self.mean:.2f}, deviation {self.deviation:.2f}"
        return "\n".join([f"{printable(self.root)}: {splits}; {values}; all fine", *self.notices])


def check_features(
    root: Path | str,
    kaldi_labels: KaldiLabels,
    dims: int | None,
    make_command: str,
    *,
    full: bool = False,
    vocabulary_size: int | None = None,
) -> FeatureSummary:
    """Check both splits of `root` and return a summary of their contents.

    Args:
        root: the folder with train/ and val/ in it.
        kaldi_labels: the file of labels in a Kaldi folder: `utt2spk` has speakers, `text` has
            transcripts. With `utt2spk`, the rules for speakers are checked in any layout.
        dims: values a frame; None takes the number that the first utterance has.
        make_command: the command for mock data that an error suggests.
        full: whether to read the values of all feature files, not only of some.
        vocabulary_size: tokens of the model. The characters of the training transcripts must fit.
            None skips this check.

    Raises:
        InputError: for the first fault found.
    """
    root = Path(root).expanduser().absolute()
    if root.is_file():
        raise InputError(
            f"The data folder {printable(root)} is a file. Give a folder with train/ and val/ in "
            "it.",
            parameter="data_dir",
        )
    utterances: dict[str, list[Utterance]] = {}
    for split in SPLITS:
        utterances[split] = list_utterances(root / split, kaldi_labels, make_command)
        refuse_missing_files(root / split, utterances[split])
        dims = check(utterances[split], dims, full=full)
        utterances[split] = with_frames(utterances[split])
    assert dims is not None
    if kaldi_labels == "utt2spk":
        _check_speakers(utterances, root)
    notices = () if vocabulary_size is None else _notices(utterances, vocabulary_size, root)
    mean, deviation = statistics(utterances["train"])
    return FeatureSummary(
        root,
        {split: len(listed) for split, listed in utterances.items()},
        {split: len(_labels(listed)) for split, listed in utterances.items()},
        {
            split: sum(utterance.frames or 0 for utterance in listed)
            for split, listed in utterances.items()
        },
        dims,
        float(mean.mean()),
        float(deviation.mean()),
        notices,
    )


def _labels(utterances: Iterable[Utterance]) -> set[str]:
    return {utterance.label for utterance in utterances}


def _check_speakers(utterances: dict[str, list[Utterance]], root: Path) -> None:
    """Raise InputError if a speaker has one utterance only, or is in both splits."""
    for split, listed in utterances.items():
        by_speaker(listed, 1, root / split)
    refuse_common_speakers(_labels(utterances["train"]), _labels(utterances["val"]), root)


def _notices(
    utterances: dict[str, list[Utterance]], vocabulary_size: int, root: Path
) -> tuple[str, ...]:
    """Return lines about characters of transcripts that training does not have.

    Raises:
        InputError: if the characters of the training transcripts do not fit the vocabulary.
    """
    transcripts = {
        split: [tidy(utterance.label) for utterance in listed]
        for split, listed in utterances.items()
    }
    characters = Characters.of(transcripts["train"], vocabulary_size, printable(root / "train"))
    return unknown_notice(transcripts["val"], characters, root / "val")


def by_speaker(
    utterances: Sequence[Utterance], frames: int, where: Path
) -> dict[str, list[Utterance]]:
    """Return the utterances of at least `frames` frames by speaker, sorted by the speaker's name.

    Raises:
        InputError: for a speaker who has fewer than two such utterances; the message names the
            speaker and the folder `where`.
    """
    result: dict[str, list[Utterance]] = {
        utterance.label: [] for utterance in sorted(utterances, key=lambda u: u.label)
    }
    for utterance in with_frames(utterances):
        if (utterance.frames or 0) >= frames:
            result[utterance.label].append(utterance)
    if few := [speaker for speaker, own in result.items() if len(own) < PER_ITEM]:
        raise InputError(
            f"{len(few)} of {len(result)} speakers in {printable(where)} have fewer than "
            f"{PER_ITEM} utterances of {frames} frames or more: {few[0]} has "
            f"{len(result[few[0]])}. A speaker is learned from pairs: leave these out, or use a "
            "smaller sequence_length.",
            parameter="sequence_length",
        )
    return result


def refuse_common_speakers(train: Iterable[str], held_out: Iterable[str], root: Path | str) -> None:
    """Raise InputError if a speaker is in both splits of `root`."""
    if both := sorted(set(train) & set(held_out)):
        raise InputError(
            f"{len(both)} speakers are both in train/ and in val/ of {printable(root)}, {both[0]} "
            "for instance; verification is measured on speakers that were never heard. Move each "
            "to one side.",
            parameter="data_dir",
        )

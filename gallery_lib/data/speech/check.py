"""Check that folders of acoustic features can be trained on, and name all faults if not.

ROOT/train and ROOT/val hold a manifest or Kaldi's files (features.py). The check reads the
headers of all feature files, and the values of some. For speaker verification every speaker needs
two utterances, and no speaker may be in both splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gallery_lib.data.folders import Faults, Summary, existing, printable
from gallery_lib.data.speech.characters import Characters, tidy, unknown_notice
from gallery_lib.data.speech.features import (
    KaldiLabels,
    Utterance,
    list_utterances,
    load,
    refuse_missing_files,
    refuse_other_sizes,
    shape,
    statistics,
    with_frames,
)
from gallery_lib.errors import InputError

SPLITS = ("train", "val")
PER_ITEM = 2  # utterances of a speaker in one item


def check_features(
    root: Path | str,
    kaldi_labels: KaldiLabels,
    dims: int | None,
    make_command: str,
    *,
    full: bool = False,
    vocabulary_size: int | None = None,
) -> Summary:
    """Check both splits of `root` and return a summary of their contents.

    With the `kaldi_labels` `utt2spk`, the rules for speakers are checked in any layout. `dims` is
    the number of values a frame; None takes that of the first utterance. An error suggests
    `make_command`. `full` reads the values of all feature files. The characters of the training
    transcripts must fit into `vocabulary_size` tokens, unless that is None.

    InputError names all faults found. What depends on whole files is looked at without faults.
    """
    root = Path(root).expanduser().absolute()
    if root.exists():
        existing(root, "data folder", "Give a folder with train/ and val/ in it.")
    utterances: dict[str, list[Utterance]] = {}
    faults = Faults()
    for split in SPLITS:
        with faults.noted():
            listed = list_utterances(root / split, kaldi_labels, make_command)
            with faults.noted():
                refuse_missing_files(root / split, listed)
            there = [utterance for utterance in listed if utterance.path.is_file()]
            dims = _check_files(there, dims, full, faults)
            utterances[split] = listed
    faults.refuse()
    assert dims is not None
    utterances = {split: with_frames(listed) for split, listed in utterances.items()}
    notices: tuple[str, ...] = ()
    if kaldi_labels == "utt2spk":
        for split, listed in utterances.items():
            with faults.noted():
                by_speaker(listed, 1, root / split)
        with faults.noted():
            refuse_common_speakers(_labels(utterances["train"]), _labels(utterances["val"]), root)
    if vocabulary_size is not None:
        train, held_out = ([tidy(u.label) for u in utterances[split]] for split in SPLITS)
        with faults.noted():
            characters = Characters.of(train, vocabulary_size, printable(root / "train"))
            notices = unknown_notice(held_out, characters, root / "val")
    faults.refuse()
    mean, deviation = statistics(utterances["train"])
    splits = (
        f"{split}: {len(listed)} utterances, {len(_labels(listed))} different labels, "
        f"{sum(utterance.frames or 0 for utterance in listed)} frames"
        for split, listed in utterances.items()
    )
    values = f"{dims} values a frame, mean {mean.mean():.2f}, deviation {deviation.mean():.2f}"
    return Summary(root, f"{'; '.join(splits)}; {values}", notices)


def _labels(utterances: Iterable[Utterance]) -> set[str]:
    return {utterance.label for utterance in utterances}


def _check_files(
    utterances: Sequence[Utterance], dims: int | None, full: bool, faults: Faults
) -> int | None:
    """Check the headers of all utterances and the values of some, or all with `full`.

    Return the number of values a frame, which is the first one's where `dims` is None.
    """
    every = 1 if full else max(1, len(utterances) // 64)
    for number, utterance in enumerate(utterances):
        with faults.noted():
            sizes = shape(utterance)
            dims = sizes[1] if dims is None else dims
            refuse_other_sizes(utterance, sizes, dims)
            if number % every == 0:
                load(utterance, dims)
    return dims


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

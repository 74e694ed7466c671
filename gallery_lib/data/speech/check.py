"""Check that folders of acoustic features can be trained on, and name all faults if not.

ROOT/train and ROOT/val hold a manifest (features.py). For speaker verification every speaker needs
two utterances, and no speaker may be in both splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gallery_lib.data.folders import SPLITS, Faults, Summary, existing, printable
from gallery_lib.data.speech.characters import Characters, tidy, unknown_notice
from gallery_lib.data.speech.features import Utterance, list_utterances, load
from gallery_lib.errors import InputError

PER_ITEM = 2  # utterances of a speaker in one item
_SAMPLES = 64


def check_features(
    root: Path | str,
    dims: int,
    make_command: str,
    *,
    full: bool = False,
    vocabulary_size: int | None = None,
) -> Summary:
    """Check both splits of `root` and return a summary of their contents.

    `dims` is the number of values a frame. An error suggests `make_command`. 64 files of a split
    are read, all with `full`. Labels are transcripts whose training characters must fit into
    `vocabulary_size` tokens; where that is None they are speakers.

    InputError names all faults found. What depends on whole files is looked at without faults.
    """
    root = Path(root).expanduser().absolute()
    if root.exists():
        existing(root, "data folder", "Give a folder with train/ and val/ in it.")
    utterances: dict[str, list[Utterance]] = {}
    faults = Faults()
    for split in SPLITS:
        with faults.noted():
            listed = utterances[split] = list_utterances(root / split, make_command)
            for utterance in listed[:: 1 if full else max(1, len(listed) // _SAMPLES)]:
                with faults.noted():
                    load(utterance, dims)
    faults.refuse()
    notices: tuple[str, ...] = ()
    if vocabulary_size is None:
        for split, listed in utterances.items():
            with faults.noted():
                by_speaker(listed, 1, root / split)
        with faults.noted():
            refuse_common_speakers(_labels(utterances["train"]), _labels(utterances["val"]), root)
    else:
        train, held_out = ([tidy(u.label) for u in utterances[split]] for split in SPLITS)
        with faults.noted():
            characters = Characters.of(train, vocabulary_size, printable(root / "train"))
            notices = unknown_notice(held_out, characters, root / "val")
    faults.refuse()
    splits = (
        f"{split}: {len(listed)} utterances, {len(_labels(listed))} different labels, "
        f"{sum(utterance.frames for utterance in listed)} frames"
        for split, listed in utterances.items()
    )
    return Summary(root, f"{'; '.join(splits)}; {dims} values a frame", notices)


def _labels(utterances: Iterable[Utterance]) -> set[str]:
    return {utterance.label for utterance in utterances}


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
    for utterance in utterances:
        if utterance.frames >= frames:
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

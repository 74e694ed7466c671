"""Data set of utterances with transcripts for speech recognition.

features.py lists and reads the folder. An item is (features
float32 [T, 320], characters int64 [U]). A frame has 80 log filter-bank values, normalised to zero
mean and unit variance over the training data. Four frames are stacked every three, so T is a third
of the frames (Sak et al., "Fast and Accurate Recurrent Neural Network Acoustic Models", 2015).
`collate` pads frames to a multiple of 16 and targets to a multiple of 4, which keeps rows aligned
for kernels.

`sequence_length` is the usual T. Utterances of more than twice that length are cut into pieces at
the cuts of an alignment (features.py). Without an alignment they are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from gallery_lib.data.folders import LeftOut
from gallery_lib.data.speech.characters import BEGIN, END, Characters, tidy, unknown_notice
from gallery_lib.data.speech.features import (
    Cut,
    Utterance,
    list_utterances,
    load,
    read_alignment,
    statistics,
)
from gallery_lib.errors import InputError

FILTERS = 80  # values a frame
STACKED, STRIDE = 4, 3
FRAME_MULTIPLE, TARGET_MULTIPLE = 16, 4
IGNORED = -100  # label of padding in targets: the default `ignore_index` of torch's cross-entropy
MAKE_COMMAND = "python3 data_prep/mock_speech.py"


class SpeechBatch(NamedTuple):
    """Batch of padded utterances; T and U are the longest lengths in the batch, rounded up."""

    features: Tensor  # float32 [N, T, 320], padded with zeros
    lengths: Tensor  # int64 [N], frames without padding
    inputs: Tensor  # int64 [N, U], BEGIN and the characters, padded with END
    labels: Tensor  # int64 [N, U], the characters and END, padded with IGNORED


def stack_frames(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """Stack four frames every three: [F, 80] → [⌈F / 3⌉, 320].

    Row t holds frames 3t to 3t + 3. The last frame is repeated past the end.
    """
    first = np.arange(0, len(frames), STRIDE)[:, None]  # [T, 1]
    return frames[np.minimum(first + np.arange(STACKED), len(frames) - 1)].reshape(len(first), -1)


def stacked_length(frames: int) -> int:
    """Return T, the number of stacked frames, of an utterance of `frames` frames."""
    return -(-frames // STRIDE)


def _padded(sequences: Sequence[Tensor], value: float, multiple: int) -> Tensor:
    """Pad N sequences [L, …] to one tensor [N, longest L rounded up to a multiple, …]."""
    batch = pad_sequence(list(sequences), batch_first=True, padding_value=value)
    missing = -batch.shape[1] % multiple
    return torch.cat((batch, batch.new_full((len(batch), missing, *batch.shape[2:]), value)), dim=1)


def collate(items: Sequence[tuple[Tensor, Tensor]]) -> SpeechBatch:
    """Return the padded batch of `items`, each (features [T, 320], characters [U])."""
    features, characters = zip(*items, strict=True)
    begin, end = torch.tensor([BEGIN]), torch.tensor([END])
    return SpeechBatch(
        features=_padded(features, 0.0, FRAME_MULTIPLE),
        lengths=torch.tensor([len(f) for f in features]),
        inputs=_padded([torch.cat((begin, c)) for c in characters], END, TARGET_MULTIPLE),
        labels=_padded([torch.cat((c, end)) for c in characters], IGNORED, TARGET_MULTIPLE),
    )


def finish_batch(
    batch: SpeechBatch, memory_format: torch.memory_format = torch.contiguous_format
) -> SpeechBatch:
    """Mark T and U as dynamic for the compiler, so that the first graph serves all lengths."""
    for tensor in (batch.features, batch.inputs):
        torch._dynamo.maybe_mark_dynamic(tensor, 1)
    return batch


@dataclass(frozen=True)
class Piece:
    """Frames of an utterance from `start` up to `stop`, and their transcript."""

    utterance: Utterance
    start: int
    stop: int
    transcript: str


class SpeechFolder(Dataset[tuple[Tensor, Tensor]]):
    """Map-style data set of the utterances in one folder.

    `lengths` has the T of each item. `notices` has lines on left-out utterances and on unknown
    characters. The training data defines the vocabulary and the normalisation; held-out data
    receives the training data set as `train`. Reading an item raises InputError if its file is
    damaged.

    Raises:
        InputError: for a folder that cannot be used.
    """

    collate = staticmethod(collate)
    finish_batch = staticmethod(finish_batch)

    def __init__(
        self,
        folder: Path | str,
        sequence_length: int,
        vocabulary_size: int,
        train: SpeechFolder | None = None,
    ) -> None:
        self.folder = Path(folder).expanduser().absolute()
        utterances = list_utterances(self.folder, MAKE_COMMAND)
        if train is None:
            labels = (tidy(utterance.label) for utterance in utterances)
            self.characters = Characters.of(labels, vocabulary_size, self.folder)
            self.mean, self.deviation = statistics(utterances, FILTERS)  # [80] each
        else:
            self.characters = train.characters
            self.mean, self.deviation = train.mean, train.deviation
        self.pieces = _pieces(self.folder, utterances, sequence_length)
        kept = {piece.utterance.name for piece in self.pieces}
        left_out, long = LeftOut(), [u.name for u in utterances if u.name not in kept]
        if long:
            reason = f"of {len(utterances)} utterances of more than {2 * sequence_length} stacked "
            left_out.add(f"{reason}frames", long[0], len(long))
        spoken = (piece.transcript for piece in self.pieces)
        unknown = unknown_notice(spoken, self.characters, self.folder)
        self.notices = (*left_out.notice(self.folder), *unknown)
        self.lengths = [stacked_length(piece.stop - piece.start) for piece in self.pieces]

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.pieces[index]
        frames = load(piece.utterance, FILTERS)[piece.start : piece.stop]
        features = stack_frames((frames - self.mean) / self.deviation)
        return torch.from_numpy(features), torch.tensor(self.characters.encode(piece.transcript))


def _pieces(folder: Path, utterances: Sequence[Utterance], sequence_length: int) -> list[Piece]:
    """Return utterances of at most twice `sequence_length`, and pieces of longer aligned ones."""
    alignment = read_alignment(folder)
    pieces: list[Piece] = []
    for number, utterance in enumerate(utterances):
        whole = Piece(utterance, 0, utterance.frames, tidy(utterance.label))
        if stacked_length(utterance.frames) <= 2 * sequence_length:
            pieces.append(whole)
        elif utterance.name in alignment:
            cuts = alignment[utterance.name]
            pieces += _cut(whole, cuts, STRIDE * sequence_length, np.random.default_rng(number))
    if not pieces:
        shortest = min(stacked_length(utterance.frames) for utterance in utterances)
        raise InputError(
            f"sequence_length={sequence_length}: no utterance in {folder} has at most "
            f"{2 * sequence_length} stacked frames; the shortest has {shortest}. Use a larger "
            "sequence_length.",
            parameter="sequence_length",
        )
    return pieces


def _cut(
    whole: Piece, cuts: Sequence[Cut], frames: int, rng: np.random.Generator
) -> Iterator[Piece]:
    """Yield the pieces of `whole`, cut where a length of 0.5 to 1.5 × `frames` is nearest."""
    begin = (0, 0)
    wanted = rng.uniform(0.5, 1.5) * frames
    end = (len(whole.transcript), whole.stop)
    for cut, following in pairwise([*cuts, end]):
        if abs(cut[1] - begin[1] - wanted) <= abs(following[1] - begin[1] - wanted):
            yield Piece(whole.utterance, begin[1], cut[1], whole.transcript[begin[0] : cut[0]])
            begin, wanted = cut, rng.uniform(0.5, 1.5) * frames
    yield Piece(whole.utterance, begin[1], end[1], whole.transcript[begin[0] :])

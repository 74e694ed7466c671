"""A speaker encoder, trained to tell speakers apart: one unit vector per utterance.

Heigold et al., "End-to-End Text-Dependent Speaker Verification", 2016, and Wan et al., "Generalized
End-to-End Loss for Speaker Verification", 2018: three LSTM layers, each followed by a linear
projection without bias. The last frame, normalised, is the embedding. Sizes and batch size are
those of TorchBench's `tts_angular`. Unlike TorchBench's, a batch holds two utterances of each
speaker, without which the loss is not a number.

The loss is that of Chung et al., "In Defence of Metric Learning for Speaker Recognition", 2020. In
a batch of pairs, the first utterance of each speaker is compared by cosine with the second ones of
all. With more than two utterances a speaker, it is compared with the mean of the rest.
Cross-entropy asks for the speaker's own. The loss learns the scale and the offset of the cosines
(10 and −5 at the start). Both are parameters of the model, so that every optimizer and every
wrapper of it finds them.

The equal error rate is the error at the threshold where as many true pairs are refused as false
ones accepted. Here a trial is any first with any second utterance of an evaluation batch.

The data are ROOT/train and ROOT/val, folders of features with speakers as labels
(data/speech/features.py). In training, the choice of two utterances and of their frames depends on
(seed, epoch, index) alone. Held-out items are consecutive pairs of each speaker's utterances,
cropped at the middle. Each value of a frame is normalised with its mean and standard deviation over
the training utterances, so features of any scale work.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from gallery_lib.comm.ddp import plain_module
from gallery_lib.comm.process_group import gather_for_common_loss
from gallery_lib.config import TrainConfig
from gallery_lib.data.folders import LeftOut
from gallery_lib.data.seeded_items import SeededItems
from gallery_lib.data.speech import features
from gallery_lib.data.speech.features import (
    PER_ITEM,
    Statistics,
    Utterance,
    by_speaker,
    load,
    refuse_common_speakers,
)
from gallery_lib.errors import InputError
from gallery_lib.optim import OptimizerSpec
from gallery_lib.system import paths
from gallery_lib.tasks.task import FULL, QUICK, Splits, Task

MAKE_COMMAND = "python3 data_prep/mock_speakers.py"


class SpeakerPairs(SeededItems[tuple[torch.Tensor, int]]):
    """Map-style data set: item i is (features float32 [2, T, dims] of one speaker, speaker number).

    T is `frames`. With `train` there is one item per speaker, with random utterances and frames;
    otherwise one per pair of a speaker's utterances, always the same. `statistics` for normalising
    are by default those of this split. `notices` has lines on utterances that are too short.

    Raises:
        InputError: for a folder that cannot be used, for features with another number of values a
            frame, and for a speaker with fewer than two utterances of at least T frames.
    """

    def __init__(
        self,
        root: Path | str,
        split: str,
        frames: int,
        dims: int,
        train: bool,
        seed: int = 0,
        statistics: Statistics | None = None,
    ) -> None:
        super().__init__(train, seed)
        folder = Path(root).expanduser().absolute() / split
        utterances = features.list_utterances(folder, MAKE_COMMAND)
        speakers = by_speaker(utterances, frames, folder)
        kept = {utterance.name for own in speakers.values() for utterance in own}
        left_out, short = LeftOut(), [u.name for u in utterances if u.name not in kept]
        if short:
            reason = f"of {len(utterances)} utterances of fewer than {frames} frames"
            left_out.add(reason, short[0], len(short))
        self.dims, self.notices = dims, left_out.notice(folder)
        self.speakers, self.frames = list(speakers), frames
        # speaker number, utterances to choose from
        self.items: list[tuple[int, list[Utterance]]] = list(enumerate(speakers.values()))
        if not train:
            # first a pair of every speaker, then a second pair of every speaker that has one, …
            pairs = [
                (label, own[start : start + PER_ITEM])
                for start in range(0, max(map(len, speakers.values())), PER_ITEM)
                for label, own in self.items
            ]
            self.items = [(label, pair) for label, pair in pairs if len(pair) == PER_ITEM]
        self.statistics = statistics or features.statistics(utterances, dims)

    def __len__(self) -> int:
        return len(self.items)

    def _item(self, index: int) -> tuple[torch.Tensor, int]:
        label, own = self.items[index]
        rng = self.rng(index) if self.train else None
        places = [int(i) for i in rng.permutation(len(own))[:PER_ITEM]] if rng else range(PER_ITEM)
        return torch.from_numpy(np.stack([self._crop(own[i], rng) for i in places])), label

    def _crop(self, utterance: Utterance, rng: np.random.Generator | None) -> NDArray[np.float32]:
        """Return T normalised frames [T, dims]: a random crop, or the middle if `rng` is None."""
        features = load(utterance, self.dims)
        spare = len(features) - self.frames
        start = int(rng.integers(spare + 1)) if rng else spare // 2
        mean, deviation = self.statistics
        return (features[start : start + self.frames] - mean) / deviation


# Whether torch has a bfloat16 LSTM for this CPU. oneDNN has none without AVX-512, and ends with an
# error. There the LSTM stays in fp32.
_HAS_BFLOAT16_LSTM = not torch.backends.mkldnn.is_available() or bool(
    torch.ops.mkldnn._is_mkldnn_bf16_supported()
)


class ProjectedLSTM(nn.Module):
    """LSTM layer with a projection of its output: [N, T, inputs] → [N, T, projection]."""

    def __init__(self, inputs: int, hidden: int, projection: int) -> None:
        """Build an LSTM of `hidden` cells and a projection without bias."""
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.project = nn.Linear(hidden, projection, bias=False)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the projected outputs of every frame; the state starts at zero."""
        if (
            frames.device.type == "cpu"
            and torch.is_autocast_enabled("cpu")
            and not _HAS_BFLOAT16_LSTM
        ):
            with torch.autocast("cpu", enabled=False):
                outputs = self.lstm(frames.to(self.project.weight.dtype))[0]
        else:
            outputs = self.lstm(frames)[0]
        return self.project(outputs)


class SpeakerEncoder(nn.Module):
    """Features [..., T, dims] → unit vectors [..., projection], in float32 under autocast too."""

    def __init__(
        self, dims: int = 40, hidden: int = 768, projection: int = 256, layers: int = 3
    ) -> None:
        """Build `layers` LSTM layers of `hidden` cells for frames of `dims` values."""
        super().__init__()
        self.layers = nn.Sequential(
            *(ProjectedLSTM(projection if i else dims, hidden, projection) for i in range(layers))
        )
        self.scale = nn.Parameter(torch.tensor(10.0))
        self.offset = nn.Parameter(torch.tensor(-5.0))
        _initialize(self.layers)

    def forward(self, features: Tensor) -> Tensor:
        """Return the embeddings; only the loss uses `scale` and `offset`."""
        last = self.layers(features.flatten(0, -3))[:, -1]  # [N, projection]
        last = last if last.dtype is torch.float64 else last.float()
        return F.normalize(last, dim=-1).unflatten(0, features.shape[:-2])


def _initialize(layers: nn.Module) -> None:
    """Initialise weights with Glorot gate by gate and biases with zero.

    So embeddings depend on what is heard from the start. With torch's own start the biases outweigh
    the input three layers deep: all embeddings point the same way, to within bfloat16's rounding.
    The gates that keep the state start open (bias 1; Jozefowicz et al., "An Empirical Exploration
    of Recurrent Network Architectures", 2015), since only the last frame is looked at.
    """
    for name, parameter in layers.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
            if "bias_ih" in name:
                # Gates are stored as input, forget, cell, output.
                nn.init.ones_(parameter.data.chunk(4)[1])
        elif "lstm.weight" in name:
            for gate in parameter.data.chunk(4):
                nn.init.xavier_normal_(gate)
        else:
            nn.init.xavier_normal_(parameter)


Batch = tuple[Tensor, Tensor]  # features float [N, 2, T, dims], speaker numbers int64 [N]
DIMS = 40
SCORE_BINS = 2000  # of cosines from −1 to 1: an equal error rate is known to the width of one


def utterances(config: TrainConfig) -> Splits:
    """Return utterances of the folder `config.data_dir` else mock ones.

    They have `config.sequence_length` frames.

    Raises:
        InputError: for a batch size of fewer than two speakers.
    """
    root = config.data_dir or str(paths.data_dir("speakers-small"))
    assert config.sequence_length is not None and config.batch_size is not None
    if config.batch_size < 2 * PER_ITEM:
        raise InputError(
            f"batch_size={config.batch_size} is one speaker, who has nobody to be told from: use "
            f"{2 * PER_ITEM} or more.",
            parameter="batch_size",
        )
    sizes = (config.sequence_length, DIMS)
    train = SpeakerPairs(root, "train", *sizes, train=True, seed=config.seed)
    held_out = SpeakerPairs(
        root, "val", *sizes, train=False, seed=config.seed, statistics=train.statistics
    )
    refuse_common_speakers(train.speakers, held_out.speakers, root)
    return Splits(train, held_out)


def cosines(embeddings: Tensor) -> Tensor:
    """Return the cosines [N, N] of unit vectors [N, M, D].

    Each speaker's first vector is compared with the centroid of each one's other M − 1.
    """
    return embeddings[:, 0] @ F.normalize(embeddings[:, 1:].mean(1), dim=-1).T


def angular_prototypical(embeddings: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """Return the loss of unit vectors [N, M, D] of N different speakers."""
    logits = cosines(embeddings) * scale.clamp(min=1e-6) + offset
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the angular prototypical loss over the speakers of all processes.

    It is the same number in each process.
    """
    embeddings = gather_for_common_loss(model(batch[0]))
    inner: Any = plain_module(model)
    # The product of cosines stays in the embeddings' fp32.
    with torch.autocast(embeddings.device.type, enabled=False):
        return angular_prototypical(embeddings, inner.scale, inner.offset)


def metrics(model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, int]]:
    """Return histograms of the cosines of true and of false pairs in one batch.

    `summary` makes the error rate of them.
    """
    features, speakers = batch
    embeddings = model(features)
    with torch.autocast(embeddings.device.type, enabled=False):
        scores = cosines(embeddings).double()
    same = speakers[:, None] == speakers
    return {
        name: (torch.histc(pair_scores.clamp(-1, 1), SCORE_BINS, -1.0, 1.0), pair_scores.numel())
        for name, pair_scores in (("true_pairs", scores[same]), ("false_pairs", scores[~same]))
    }


def summary(shares: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the equal error rate of score histograms."""
    return {"eer": equal_error_rate(shares["true_pairs"], shares["false_pairs"])}


def equal_error_rate(true_pairs: Tensor, false_pairs: Tensor) -> float:
    """Return the rate at which refused true and accepted false pairs are equally frequent.

    Between two bins it is linear. Both arguments are the shares [bins] of scores in bins from low
    to high, and add up to 1. The rate is NaN when one of them is.
    """
    edge = torch.zeros(1, dtype=torch.float64)
    # of the true pairs, below each edge between bins
    refused = torch.cat((edge, true_pairs.double().cpu().cumsum(0)))
    accepted = 1 - torch.cat((edge, false_pairs.double().cpu().cumsum(0)))
    difference = refused - accepted  # from −1 to 1, never falling
    if bool(difference.isnan().any()):
        return float("nan")
    after = min(int((difference < 0).sum()), len(difference) - 1)
    before = after - 1
    part = float(-difference[before] / (difference[after] - difference[before]))
    return float(refused[before] + part * (refused[after] - refused[before]))


def chance(splits: Splits) -> dict[str, float]:
    """Return the error rate of scores that know nothing."""
    return {"eer": 0.5}


def build_model() -> nn.Module:
    """Return the encoder for frames of 40 values."""
    return SpeakerEncoder(dims=DIMS)


TASK = Task(
    name="tts_angular",
    title="Speaker encoder",
    domain="speech",
    batch_size=64,
    sequence_length=50,
    length_unit="frames",
    samples_per_item=2,
    build_model=build_model,
    data=utterances,
    loss=loss,
    metrics=metrics,
    summary=summary,
    chance=chance,
    optimizer=OptimizerSpec("RAdam", lr=1e-3),
    data_commands=("mock_speakers", "check_features"),
    parameters=9_381_890,
    activation_bytes_per_sample=10_600_000,
    # Weights that each frame is multiplied with: 3072·(40 + 768) + 2·3072·(256 + 768) in the LSTMs,
    # 3·768·256 in the projections; times two operations, 50 frames, and three for forward and
    # backward.
    flops_per_sample=2.81e9,
    quick=QUICK | {"batch_size": 32, "sequence_length": 32, "block_steps": 5},
    full=FULL | {"batch_size": 256, "sequence_length": 50},
)

"""Shared parts of speaker verification: utterance pairs, angular prototypical loss, error rate.

Chung et al., "In Defence of Metric Learning for Speaker Recognition", 2020. In a batch of pairs,
the first utterance of each speaker is compared by cosine with the second ones of all. With more
than two utterances a speaker, it is compared with the mean of the rest. Cross-entropy asks for the
speaker's own.

The equal error rate is the error at the threshold where as many true pairs are refused as false
ones accepted. Here a trial is any first with any second utterance of an evaluation batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery_lib.comm.ddp import plain_module
from gallery_lib.comm.process_group import gather_for_common_loss
from gallery_lib.config import TrainConfig
from gallery_lib.data.speech.check import PER_ITEM, refuse_common_speakers
from gallery_lib.data.speech.speakers import SpeakerPairs
from gallery_lib.errors import InputError
from gallery_lib.system import paths
from gallery_lib.tasks.task import Splits

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

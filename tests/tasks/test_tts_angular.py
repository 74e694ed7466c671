"""Speakers in pairs of utterances, their encoder, the angular loss, and the equal error rate."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from refusal import refused
from torch.utils.data import DataLoader

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.data.speech.mock_speakers import SpeakerSpec, features, generate
from gallery_lib.tasks import tts_angular as domain
from gallery_lib.tasks.tts_angular import SpeakerEncoder, SpeakerPairs


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return mock data of nine speakers, which must not be changed.

    Six are to train on and three are held out, with five utterances each.
    """
    folder = tmp_path_factory.mktemp("speakers") / "small"
    generate(folder, SpeakerSpec(train=6, val=3, utterances=5, seed=2))
    return folder


def training(root: Path, frames: int = 20) -> SpeakerPairs:
    return SpeakerPairs(root, "train", frames, 40, train=True)


def items(data: SpeakerPairs) -> torch.Tensor:
    return torch.cat([batch for batch, _ in DataLoader(data, 4)])


def test_a_training_item_is_a_speaker_in_two_different_utterances(root: Path) -> None:
    data = training(root, frames=120)
    assert len(data) == 6 and data.speakers == [f"train-{i:05d}" for i in range(6)]
    pair, label = data[4]
    assert (pair.shape, pair.dtype, label) == ((2, 120, 40), torch.float32, 4)
    mean, deviation = data.statistics
    found = []
    for number in range(5):
        whole = torch.from_numpy((features(2, "train", 4, number) - mean) / deviation)
        crops = whole.unfold(0, 120, 1).transpose(1, 2)  # [starts, 120, 40]
        found.append([bool((crops - one).abs().amax((1, 2)).min() < 1e-5) for one in pair])
    # Each is in one utterance, and they are two.
    assert sorted(found)[-2:] == [[False, True], [True, False]] and sum(map(sum, found)) == 2


def test_items_are_normalised_by_the_training_utterances(root: Path) -> None:
    train = training(root, frames=100)
    values = torch.cat([items(train) for _ in range(3)])
    assert abs(values.mean()) < 0.2 and abs(values.std() - 1) < 0.2
    held_out = SpeakerPairs(root, "val", 100, 40, train=False, statistics=train.statistics)
    mean, deviation = train.statistics
    whole = features(2, "val", 0, 0)
    start = (len(whole) - 100) // 2
    assert np.allclose(
        held_out[0][0][0].numpy(), (whole[start : start + 100] - mean) / deviation, atol=1e-5
    )


def test_held_out_items_are_all_pairs_of_each_speaker_always_the_same(root: Path) -> None:
    data = SpeakerPairs(root, "val", 20, 40, train=False)
    # Five utterances are two pairs.
    assert [data[i][1] for i in range(len(data))] == [0, 1, 2] * 2
    first = items(data)
    data.set_epoch(3)
    assert torch.equal(first, items(data))
    assert len({tuple(values) for values in first[:, :, 0, 0].tolist()}) == 6
    assert not set(data.speakers) & set(training(root).speakers)


def test_short_utterances_are_counted_and_named_and_a_batch_of_one_speaker_is_refused(
    root: Path, tmp_path: Path
) -> None:
    with refused("sequence_length", "201 frames", "train-00000 has 0"):
        training(root, frames=201)
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    assert training(copy).notices == ()
    lines = (copy / "train" / "manifest.tsv").read_text().splitlines()
    path, label, _ = lines[3].split("\t")
    np.save(copy / "train" / path, np.zeros((10, 40), np.float32))
    lines[3] = f"{path}\t{label}\t10"
    (copy / "train" / "manifest.tsv").write_text("\n".join(lines) + "\n")
    (line,) = training(copy).notices
    assert f"1 of 30 utterances of fewer than 20 frames ({path})" in line
    with refused("batch_size", 2):
        tasks.data_of(TrainConfig(model="tts_angular", batch_size=2))


def small() -> SpeakerEncoder:
    torch.manual_seed(0)
    return SpeakerEncoder(dims=6, hidden=24, projection=16)


def test_an_embedding_is_the_last_frame_s_as_a_unit_vector_and_depends_on_the_first_one():
    model, features = small(), torch.randn(5, 2, 9, 6, requires_grad=True)
    embeddings = model(features)
    assert embeddings.shape == (5, 2, 16)
    last = model.layers(features[3])[:, -1]
    assert torch.allclose(embeddings[3], last / last.norm(dim=-1, keepdim=True), atol=1e-6)
    embeddings[0, 0, 0].backward()
    assert features.grad is not None and features.grad[0, 0, 0].abs().max() > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(features).dtype is torch.float32
    assert model.double()(features.double()).dtype is torch.float64


def test_the_loss_is_the_cross_entropy_of_picking_one_s_own_centroid():
    embeddings = F.normalize(torch.randn(5, 3, 8, dtype=torch.float64), dim=-1)
    centroids = (embeddings[:, 1] + embeddings[:, 2]) / 2
    scores = 10 * F.cosine_similarity(embeddings[:, None, 0], centroids[None], dim=-1) - 5
    loss = domain.angular_prototypical(embeddings, torch.tensor(10.0), torch.tensor(-5.0))
    torch.testing.assert_close(loss, F.cross_entropy(scores, torch.arange(5)), rtol=0, atol=1e-9)


def test_every_parameter_gets_a_gradient_and_the_offset_s_is_zero():
    model = SpeakerEncoder(dims=4, hidden=8, projection=8)
    domain.loss(model, (torch.randn(4, 2, 6, 4), torch.arange(4))).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    # Softmax does not see what is added to all scores.
    assert abs(gradients["offset"]) < 1e-6 < abs(gradients["scale"])


def rate(true_pairs: list[float], false_pairs: list[float]) -> float:
    shares = [
        torch.histc(torch.tensor(s, dtype=torch.float64), domain.SCORE_BINS, -1, 1) / len(s)
        for s in (true_pairs, false_pairs)
    ]
    return domain.equal_error_rate(*shares)


def test_the_equal_error_rate_of_known_scores():
    assert rate([0.5, 0.7, 0.9], [-0.2, 0.1, 0.4]) == 0.0
    assert rate([-0.5], [0.5]) == 1.0
    assert rate([0.9, 0.8, 0.7, 0.1], [0.5, -0.3, -0.4, -0.6]) == pytest.approx(0.25)
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.rand(40_000, dtype=torch.float64, generator=generator) - 1
    assert rate(scores[:20_000].tolist(), scores[20_000:].tolist()) == pytest.approx(0.5, abs=0.01)


def test_metrics_of_batches_add_up_to_the_error_rate_of_all_trials():
    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        vectors = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(number))
        return F.normalize(vectors, dim=-1), torch.tensor([0, 1, 2, 3, 4, 0])

    found = [domain.metrics(torch.nn.Identity(), batch(number)) for number in range(3)]
    # The first and the last item are the same speaker.
    assert [count for _, count in found[0].values()] == [8, 28]
    shares = {
        name: sum(part[name][0] for part in found) / sum(part[name][1] for part in found)
        for name in found[0]
    }
    scores, is_same = [], []
    for number in range(3):
        embeddings, speakers = batch(number)
        scores.append(embeddings[:, 0] @ embeddings[:, 1].T)
        is_same.append(speakers[:, None] == speakers)
    trials, same = torch.stack(scores), torch.stack(is_same)
    expected = rate(trials[same].tolist(), trials[~same].tolist())
    assert domain.summary(shares)["eer"] == pytest.approx(expected, abs=1e-6)


TWO_PROCESSES = """
import sys
import torch
from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import distribute
from gallery_lib.config import Comm
from gallery_lib.tasks.tts_angular import SpeakerEncoder
from gallery_lib.tasks import tts_angular

process_group.ensure_initialized()
torch.manual_seed(0)
model = SpeakerEncoder(dims=4, hidden=16, projection=8).double()
features = torch.randn(8, 2, 6, 4, dtype=torch.float64)
share = features.chunk(process_group.world_size())[process_group.rank()]
wrapped = distribute(model, torch.device("cpu"), Comm()) \
if process_group.world_size() > 1 else model
optimizer = torch.optim.RAdam(wrapped.parameters(), lr=1e-2)
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = tts_angular.loss(wrapped, (share, torch.arange(len(share))))
    loss.backward()
    losses.append(loss.item())
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    optimizer.step()
torch.save({"losses": losses, "gradients": gradients}, \
f"{sys.argv[1]}/{process_group.world_size()}-{process_group.rank()}.pt")
process_group.leave()
"""


@pytest.mark.slow
def test_two_processes_train_as_one_does_with_all_speakers(tmp_path, checkout):
    script = tmp_path / "train.py"
    script.write_text(TWO_PROCESSES)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    for start in ([sys.executable], torchrun):
        command = [*start, str(script), str(tmp_path)]
        subprocess.run(command, cwd=checkout, env=environment, check=True, timeout=120)
    alone, *ranks = (torch.load(tmp_path / name) for name in ("1-0.pt", "2-0.pt", "2-1.pt"))
    assert alone["losses"][2] < alone["losses"][0]
    for found in ranks:
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-9)
        torch.testing.assert_close(found["gradients"], alone["gradients"], rtol=1e-6, atol=1e-12)

"""The angular prototypical loss, also over processes, and the equal error rate."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from refusal import refused

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.models.speaker_encoder import SpeakerEncoder
from gallery_lib.tasks.domains import speaker_verification as domain


def test_the_loss_is_the_cross_entropy_of_picking_one_s_own_centroid():
    embeddings = F.normalize(torch.randn(5, 3, 8, dtype=torch.float64), dim=-1)
    expected = 0.0
    for i in range(5):
        centroids = [(embeddings[j, 1] + embeddings[j, 2]) / 2 for j in range(5)]
        scores = torch.stack(
            [10 * F.cosine_similarity(embeddings[i, 0], c, dim=0) - 5 for c in centroids]
        )
        expected += float(-scores.log_softmax(0)[i]) / 5
    loss = domain.angular_prototypical(embeddings, torch.tensor(10.0), torch.tensor(-5.0))
    assert abs(float(loss) - expected) < 1e-9 and loss.dtype is torch.float64


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
    class Given(torch.nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return features

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        vectors = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(number))
        return F.normalize(vectors, dim=-1), torch.tensor([0, 1, 2, 3, 4, 0])

    found = [domain.metrics(Given(), batch(number)) for number in range(3)]
    # The first and the last item are the same speaker.
    assert [count for _, count in found[0].values()] == [8, 28]
    shares = {
        name: sum(part[name][0] for part in found) / sum(part[name][1] for part in found)
        for name in found[0]
    }
    true_pairs, false_pairs = [], []
    for number in range(3):
        embeddings, speakers = batch(number)
        for i in range(6):
            for j in range(6):
                score = float(embeddings[i, 0] @ embeddings[j, 1])
                (true_pairs if speakers[i] == speakers[j] else false_pairs).append(score)
    assert domain.summary(shares)["eer"] == pytest.approx(rate(true_pairs, false_pairs), abs=1e-6)


def test_a_batch_of_one_speaker_is_refused():
    with refused("batch_size", 2):
        tasks.data_of(TrainConfig(model="tts_angular", batch_size=2))


TWO_PROCESSES = """
import sys
import torch
from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import distribute
from gallery_lib.config import Comm
from gallery_lib.models.speaker_encoder import SpeakerEncoder
from gallery_lib.tasks.domains import speaker_verification

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
    loss = speaker_verification.loss(wrapped, (share, torch.arange(len(share))))
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
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    alone, *ranks = (torch.load(tmp_path / name) for name in ("1-0.pt", "2-0.pt", "2-1.pt"))
    assert alone["losses"][2] < alone["losses"][0]
    for found in ranks:
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-9)
        for name, gradient in alone["gradients"].items():
            assert torch.allclose(found["gradients"][name], gradient, rtol=1e-6, atol=1e-12), name

"""A run that cannot fit into memory says so before it starts.

The declared memory is what autograd keeps.
"""

from __future__ import annotations

import re

import pytest
import torch
from refusal import refused

from gallery_lib import tasks
from gallery_lib.checkpoint.state import Parts
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.launcher.job import dry_run
from gallery_lib.system import hardware
from gallery_lib.tasks import memory_estimate


def test_a_batch_that_cannot_fit_is_refused_with_what_it_would_need():
    if hardware.gpu_count():
        pytest.skip("only host memory is asked about: run on a machine without a GPU")
    about = re.compile(r"about [\d.]+ GiB")
    with refused(None, "resnet50", "batch_size=100000", "image_size=224", about):
        dry_run(TrainConfig(batch_size=100_000), LaunchConfig())


def test_need_grows_with_the_batch_and_with_the_area_of_the_images():
    small, large = (
        memory_estimate.needed_bytes(TrainConfig(batch_size=16, image_size=size))
        for size in (64, 128)
    )
    fixed = (
        memory_estimate.needed_bytes(TrainConfig(batch_size=1, image_size=32))
        - tasks.get("resnet50").activation_bytes_per_sample * 32**2 // 224**2
    )
    assert large - fixed == pytest.approx(4 * (small - fixed), rel=0.01)


def test_what_resnet50_declares_is_what_its_forward_pass_keeps():
    """The bytes that autograd keeps, by storage, and the largest once more, for its gradient."""
    task = tasks.get("resnet50")
    model, kept = task.build_model().train(), {}
    own = {value.untyped_storage()._cdata for value in (*model.parameters(), *model.buffers())}

    def keep(value: torch.Tensor) -> torch.Tensor:
        if (key := value.untyped_storage()._cdata) not in own:
            kept[key] = value
        return value

    batch = (torch.zeros(2, 3, 224, 224), torch.zeros(2, dtype=torch.int64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        task.loss(model, batch)
    sizes = [value.untyped_storage().nbytes() for value in kept.values()]
    declared = task.activation_bytes_per_sample
    assert (sum(sizes) + max(sizes)) / 2 == pytest.approx(declared, rel=0.02)


@pytest.mark.parametrize("name", ["tts_angular", "resnet50"])  # moments, and momentum alone
def test_a_run_that_saves_checkpoints_needs_the_copy_that_they_are_written_from(name):
    task = tasks.get(name)
    model = task.build_model()
    parameters = list(model.parameters())
    optimizer = task.optimizer.build(parameters, lr=None, weight_decay=None, accelerated=False)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    leaves = torch.utils._pytree.tree_leaves(Parts(model, [optimizer]).state())
    copy_bytes = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
    without, saving = TrainConfig(name), TrainConfig(name, checkpoint_every="10")
    for processes in (1, 2):  # of which one has the copy
        more = memory_estimate.needed_bytes(saving, processes) - memory_estimate.needed_bytes(
            without, processes
        )
        assert more * processes == pytest.approx(copy_bytes, rel=0.01)

"""Recording of a real run, and the model that replays it: order, waits, and gradients in DDP."""

import dataclasses
import json
import time
from pathlib import Path

import pytest
import tiny_task
import torch
import torch.distributed as dist
from ranks import on_ranks
from refusal import refused
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.comm.process_group import all_ranks
from gallery_lib.config import Comm
from gallery_lib.measure.replay import (
    Gradient,
    Replay,
    Timeline,
    read_timeline,
    record,
    write_timeline,
)

PAUSE_SECONDS = 0.03


class Paused(nn.Module):
    """Three layers with a pause before the first gets its gradient.

    Another layer is not used, and one is frozen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.first = nn.Linear(3, 3), nn.Conv2d(3, 4, 3)
        self.frozen = nn.Conv2d(4, 4, 3).requires_grad_(False)
        self.last = nn.Linear(4, tiny_task.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        hidden = self.first(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda _: time.sleep(PAUSE_SECONDS))
        return self.last(self.frozen(hidden).mean((2, 3)))


PAUSED = dataclasses.replace(tiny_task.TASK, name="paused", build_model=Paused)


def timeline(*ready: float, backward: float | None = None) -> Timeline:
    """Return a timeline of gradients that are ready then, of odd sizes.

    They come in the reverse order of their parameters.
    """
    gradients = [
        Gradient(f"p{i}", len(ready) - 1 - i, (3, 40_000 + i), "float32", seconds)
        for i, seconds in enumerate(ready)
    ]
    passes = (0.002, 0.004, backward or ready[-1], 0.003)
    return Timeline(
        "made up", "recorded", {"batch_size": 4}, {}, "", 1, *passes, gradients=tuple(gradients)
    )


def test_a_recorded_run_has_each_gradient_when_it_was_ready() -> None:
    config = dataclasses.replace(tiny_task.config(), model=f"{Path(__file__)}:PAUSED")
    found = record(config, steps=3)
    by_name = {each.parameter: each for each in found.gradients}
    names = list(by_name)
    assert sorted(names[:2]) == ["last.bias", "last.weight"]
    assert sorted(names[2:]) == ["first.bias", "first.weight"]
    assert by_name["first.weight"].shape == (4, 3, 3, 3) and by_name["first.weight"].place == 2
    ready = [each.ready_seconds for each in found.gradients]
    assert ready[2] - ready[1] >= PAUSE_SECONDS and found.backward_seconds >= ready[3]
    about = (found.steps, found.task, found.batch_size, found.origin)
    assert about == (3, "paused", 8, "recorded")
    assert found.forward_seconds > 0 and found.optimizer_seconds > 0


def test_gradients_come_in_the_recorded_order_and_not_before_their_time() -> None:
    stretch = 3.0
    replay = Replay(timeline(0.005, 0.005, 0.02, 0.021, backward=0.03), stretch=stretch)
    came: list[tuple[int, float]] = []
    for place, parameter in enumerate(replay.parameters()):
        parameter.register_post_accumulate_grad_hook(
            lambda _, place=place: came.append((place, time.perf_counter()))
        )
    for _ in range(2):
        came.clear()
        loss = replay()
        began = time.perf_counter()
        loss.backward()
        assert time.perf_counter() - began >= 0.03 * stretch
        assert [place for place, _ in came] == [3, 2, 1, 0]
        for (_, moment), each in zip(came, replay.timeline.gradients, strict=True):
            assert moment - began >= each.ready_seconds * stretch


def test_a_step_takes_at_least_what_was_recorded_and_its_figure_is_not_stretched() -> None:
    recorded = timeline(0.001, 0.05)
    replay = Replay(recorded, stretch=4.0)
    began, used = time.perf_counter(), time.process_time()
    seconds = replay.train_step(replay)
    assert time.process_time() - used < 0.05  # the cores are left to others
    assert time.perf_counter() - began >= 4 * recorded.step_seconds
    assert recorded.step_seconds <= seconds < 4 * recorded.step_seconds


def test_parameters_have_shapes_but_no_memory_and_gradients_have_both() -> None:
    replay = Replay(timeline(0.0, 0.0), seed=1)
    assert all(parameter.untyped_storage().nbytes() == 4 for parameter in replay.parameters())
    replay().backward()
    gradients = reversed(replay.timeline.gradients)
    for gradient, parameter in zip(gradients, replay.parameters(), strict=True):
        assert parameter.grad is not None and parameter.grad.shape == gradient.shape
        assert torch.equal(parameter.grad, replay.gradient(gradient))
        assert parameter.grad.is_contiguous() and 0.9 < parameter.grad.std() < 1.1
    other = Replay(replay.timeline, seed=2)
    assert not torch.equal(other.gradient(gradient), replay.gradient(gradient))


def test_a_timeline_reads_back_as_it_was_written_and_knows_its_sums(tmp_path: Path) -> None:
    path, half = tmp_path / "new folder" / "small.json", Gradient("h", 0, (7,), "bfloat16", 0.03)
    made = timeline(0.01, 0.02)
    made = dataclasses.replace(made, gradients=(*made.gradients, half))
    write_timeline(path, made)
    assert read_timeline(path) == made
    assert made.gradient_bytes == 3 * 80_001 * 4 + 7 * 2
    assert made.step_seconds == pytest.approx(0.002 + 0.004 + 0.02 + 0.003)


def test_a_damaged_timeline_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    path, whole = tmp_path / "damaged.json", json.dumps(dataclasses.asdict(timeline(0.1)))
    forward = '"forward_seconds": '
    for damaged, parameter, *values in (
        (whole.replace('"schema": 1', '"schema": 2'), "schema", "schema 2", "reads 1"),
        (whole.replace(forward, '"other": '), path, "missing", "forward"),
    ):
        path.write_text(damaged)
        with refused(parameter, path, *values):
            read_timeline(path)
    with refused(tmp_path / "none.json"):
        read_timeline(tmp_path / "none.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    "values", [{}, {"bucket_views": True, "streams": 2, "bucket_mb": 0.2}, {"hierarchical": True}]
)
@on_ranks("two_by_two")
def test_in_ddp_gradients_are_averaged_and_a_late_rank_is_waited_for(values: dict) -> None:
    rank, known = dist.get_rank(), timeline(0.001, 0.01, 0.02)
    late = dataclasses.replace(known, forward_seconds=0.2)
    replay = Replay(known if rank else late, seed=rank)
    model = accelerate_ddp(DDP(replay, init_sync=False), Comm(**values))
    for _ in range(3):
        seconds = replay.train_step(model)
    assert seconds >= 0.2  # rank 0 takes that long, and the others wait for its gradients
    of_ranks = [Replay(known, seed=rank) for rank in range(4)]
    gradients = {gradient.place: gradient for gradient in known.gradients}
    for place, parameter in enumerate(replay.parameters()):
        exact = sum(each.gradient(gradients[place]).double() for each in of_ranks) / 4
        assert (parameter.grad - exact).abs().max() < 1e-6
        assert all(parameter.grad.equal(other) for other in all_ranks(parameter.grad))
    accelerate_ddp(model, Comm())  # ends its threads


@pytest.mark.slow
@on_ranks("two_by_two")
def test_communication_runs_while_later_gradients_are_computed() -> None:
    """DDP hands over each bucket when its gradient is ready, before the next one is."""
    ready = (0.0, 0.1, 0.2)
    model = DDP(Replay(timeline(*ready, backward=0.5)), init_sync=False, bucket_cap_mb=0.3)
    handed_over: list[float] = []

    def hook(group, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations
        handed_over.append(time.perf_counter())
        return default_hooks.allreduce_hook(group, bucket)

    model.register_comm_hook(dist.group.WORLD, hook)
    for _ in range(3):
        handed_over.clear()
        loss = model()
        began = time.perf_counter()
        loss.backward()
    assert all(0 <= at - began - one < 0.1 for at, one in zip(handed_over, ready, strict=True))

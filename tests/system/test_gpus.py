"""GPUs are described without CUDA: by the driver, else by a short process."""

from __future__ import annotations

import pytest
import torch

from gallery_lib.errors import RunFailed
from gallery_lib.system import gpus, hardware, processes
from gallery_lib.system.gpus import Gpu


def test_several_kinds_of_gpus_are_counted_and_all_must_have_bf16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixed = (Gpu("A", (9, 0)), Gpu("B", (7, 5)), Gpu("A", (9, 0)))
    monkeypatch.setattr(gpus, "visible_gpus", lambda: mixed)
    assert hardware.gpu_names() == "2 × A + 1 × B"
    assert not hardware.computes_in_bf16("cuda")
    monkeypatch.setattr(gpus, "visible_gpus", lambda: mixed[:1])
    assert hardware.computes_in_bf16("cuda")


def test_where_nvml_refuses_an_answer_a_child_asks_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = []

    def refusing(count: int) -> tuple[Gpu, ...]:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    def printed(arguments: list[str], what: str) -> str:
        questions.append(arguments[1])
        return '[["C", 8, 6]]'

    monkeypatch.setattr(gpus, "_of_nvml", refusing)
    monkeypatch.setattr(gpus, "printed_by", printed)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpus.visible_gpus() == () and not questions  # which a machine without a GPU would ask
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    gpus._asked.cache_clear()
    assert gpus.visible_gpus() == gpus.visible_gpus() == (Gpu("C", (8, 6)),)
    gpus._asked.cache_clear()
    assert len(questions) == 1 and "get_device_properties" in questions[0]


def test_a_short_process_that_fails_is_one_line() -> None:
    assert processes.printed_by(["-c", "print('yes')"], "an answer") == "yes\n"
    with pytest.raises(RunFailed, match=r"^an answer could not be found out: ValueError: no$"):
        processes.printed_by(["-c", "raise ValueError('no')"], "an answer")

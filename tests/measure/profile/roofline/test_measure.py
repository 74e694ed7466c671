"""`gallery doctor --roofline` measures a real step, and refuses what it cannot measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_task
from refusal import check_refused_command

from gallery_lib.cli.main import main
from gallery_lib.measure.profile.operator_groups import FUSED, OPTIMIZER
from gallery_lib.measure.profile.roofline.result import BETWEEN, read_roofline
from gallery_lib.system import hardware
from gallery_lib.tasks import memory_estimate

TASK = f"{tiny_task.__file__}:TASK"


@pytest.mark.slow  # starts a process, which compiles
def test_a_compiled_step_is_measured_group_by_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--compiler-opt", "--amp_level", "O0", "--batch_size", "4", "--workers", "0"]
    words += ["--threads", "1"]
    assert main(["doctor", "--roofline", TASK, *words, "--rounds", "1", "--out", str(out)]) == 0
    roofline = read_roofline(out / "roofline.json")
    groups = {group.name: group for group in roofline.groups}
    assert {"convolutions, forward", "convolutions, backward", FUSED, OPTIMIZER, BETWEEN} <= set(
        groups
    )
    # [4, 3, 16, 16] → [4, 16, 16, 16] → [4, 32, 8, 8]; no gradient of the images
    first, second = 2 * 4 * 256 * 16 * 3 * 9, 2 * 4 * 64 * 32 * 16 * 9
    assert groups["convolutions, forward"].flops == first + second
    assert groups["convolutions, backward"].flops == first + 2 * second
    weights = 3 * 16 * 9 + 16 + 16 * 32 * 9 + 32 + 32 * 4 + 4
    assert groups[OPTIMIZER].bytes == 7 * 4 * weights  # AdamW's one pass
    assert groups[FUSED].bytes > 4 * 4 * 16 * 256  # ReLU reads and writes at least that
    assert roofline.seconds == pytest.approx(roofline.profiled_seconds.median, rel=1e-6)
    assert all(part.calls and part.seconds for part in roofline.operations if part.group == FUSED)
    assert set(roofline.limits.flops_per_second) == {"float32"}
    assert roofline.limits.copy_bytes_per_second.median > 1e8
    printed = capsys.readouterr().out
    assert "Most to gain: " in printed and str(out / "roofline.json") in printed
    assert (out / "roofline.png").read_bytes().startswith(b"\x89PNG")
    assert main(["doctor", "--roofline", TASK, "--out", str(out)]) == 2  # holds another's results


def test_what_does_not_belong_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def check(words: list[str], *values: object) -> None:
        code = main(["doctor", *words, "--out", str(out)] if "--roofline" in words else words)
        printed = capsys.readouterr().err
        check_refused_command(code, printed, *values)
        assert not out.exists()

    check(["--roofline", "resnet5"], "resnet5", "resnet50")
    check(["--roofline", TASK, "runs/one"], "--roofline", "runs/one")
    check(["--roofline", TASK, "--model", "resnet18"], "--model", "--roofline names the task")
    check(["--roofline", TASK, "--max_steps", "5"], "--max_steps", "few steps")
    check(["--roofline", TASK, "--rounds", "0"], "rounds", 0)
    check(["doctor", "--batch-size", "4"], "--batch-size", "--roofline TASK")
    monkeypatch.setattr(memory_estimate, "free_bytes", lambda: 1e6)
    check(["--roofline", "resnet50"], "resnet50", "GiB of memory")
    monkeypatch.setattr(hardware, "gpu_count", lambda: 1)
    check(["--roofline", TASK], "GPU", "CUDA_VISIBLE_DEVICES=")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "roofline.json"
    file.write_text(json.dumps({"schema": 1, "task": 3}))
    with pytest.raises(Exception, match=r"roofline\.json is damaged"):
        read_roofline(file)

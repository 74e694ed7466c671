"""Scripts written for `torchacc` run with only the import line changed.

They run alone and on two processes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import time
import torch
import gallery_lib as torchacc
import torchvision
batch_size = 8
log_steps = 1
inputs = torch.randn(32, 3, 32, 32)
labels = torch.randint(0, 100, (32,))
dataset = torch.utils.data.TensorDataset(inputs, labels)
train_loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True, \
num_workers=4)
model = torchvision.models.resnet18()
num_ftrs = model.fc.in_features
model.fc = torch.nn.Linear(num_ftrs, 100)
"""
PLAIN = "model, train_loader = torchacc.accelerate(model, train_loader)"
FP16 = (
    "config = torchacc.Config()\n"
    "config.compute.fp16 = True\n"
    "model, train_loader = torchacc.accelerate(model, train_loader, config)"
)
LOOP = """
device = model.device
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
{scaler}
for epoch in range(2):
    model.train()
    start_time = time.time()
    for i, (inputs, labels) in enumerate(train_loader, 1):
        optimizer.zero_grad()
{step}
        if i % log_steps == 0{rank_0}:
            iteration_time = time.time() - start_time
            throughputs = batch_size * log_steps / iteration_time{times_world}
            print(f'Epoch: {{epoch}}, Step: {{i}}, Loss: {{loss:.4f}}, \
Throughputs: {{throughputs:.4f}} samples/s', flush=True)
            start_time = time.time()
"""
FP32_STEP = """
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
"""
AMP_STEP = """
        with torch.cuda.amp.autocast(dtype=torch.float16):
            outputs = model(inputs)
            loss = criterion(outputs, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
ON_RANK_0 = {
    "rank_0": " and torch.distributed.get_rank() == 0",
    "times_world": " * torch.distributed.get_world_size()",
}
SCRIPTS = {
    "single": HEAD + PLAIN + LOOP.format(scaler="", step=FP32_STEP, rank_0="", times_world=""),
    "data_parallel": HEAD + PLAIN + LOOP.format(scaler="", step=FP32_STEP, **ON_RANK_0),
    "amp": HEAD
    + FP16
    + LOOP.format(scaler="scaler = torch.cuda.amp.GradScaler()", step=AMP_STEP, **ON_RANK_0),
}
BATCHES = 4


def steps_printed(command: list[str], checkout: Path) -> list[tuple[int, int]]:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [
        line.replace(",", "").split()
        for line in done.stdout.splitlines()
        if line.startswith("Epoch:")
    ]
    return [(int(words[1]), int(words[3])) for words in lines]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "processes"),
    [
        pytest.param("single", 0, marks=pytest.mark.thorough),
        pytest.param("data_parallel", 1, marks=pytest.mark.thorough),
        pytest.param("data_parallel", 2, marks=pytest.mark.thorough),
        ("amp", 2),
    ],
)
def test_a_script_runs_alone_and_on_two_processes_with_half_the_steps(
    name, processes, tmp_path, checkout
):
    script = tmp_path / f"{name}.py"
    script.write_text(SCRIPTS[name])
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command = [sys.executable, *(torchrun if processes else []), str(script)]
    steps = range(1, BATCHES // max(1, processes) + 1)
    assert steps_printed(command, checkout) == [(e, s) for e in range(2) for s in steps]

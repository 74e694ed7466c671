"""Measure a GPU, and variants of a training step on it, each in a process of its own.

    python3 benchmarks/gpu_steps.py compile --out FOLDER/compile.json    # ResNet-50, all at once
    python3 benchmarks/gpu_steps.py steps --out FOLDER/steps.json        # in turns, from the cache

Variants start at the same time. A lock keeps the device for one of them, and is free while that one
compiles. Turns follow, A B … B A: milliseconds on the device, by CUDA events around steps without a
wait; of the host that queues a lone step, and the update in it; peak memory; kernels of a step with
number and microseconds. All but `eager` have cudnn.benchmark, channels_last and a fused optimizer.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import figures_file
import torch
from torch import Tensor, nn

from gallery_lib import accelerate, tasks
from gallery_lib.compiler import backend, cuda_graphs
from gallery_lib.compiler.cache import cache_variables
from gallery_lib.compiler.passes import large_batch_norms
from gallery_lib.config import Config, switches
from gallery_lib.errors import InputError
from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.stats import percentiles

MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")  # of torch.compile
OWN_NORMS, NO_COMBO = "ours with own batch norms", "ours without combo kernels"
STEPS = ("eager", "by hand", *MODES, "ours", OWN_NORMS, NO_COMBO)
FP16 = ("by hand in fp16", "ours in fp16")
RESNET = {"compile": (*STEPS[2:], FP16[1]), "steps": STEPS, "fp16": FP16}
TRANSFORMERS = {"hf_Bert": 16, "timm_vision_transformer": 32}  # batch sizes


class Plan(NamedTuple):
    """A process to start: one variant of a task at a batch size."""

    task: str
    variant: str
    batch: int
    tiny: bool

    def __str__(self) -> str:
        return f"{self.task}, {self.variant}"


def plans_of(part: str, tiny: bool, before: Path) -> list[Plan]:
    """Return the processes of a part, without those that failed when they compiled `before`."""
    size = 256 if torch.cuda.mem_get_info()[1] > 100 * 2**30 else 128  # all lie side by side
    wanted = [("resnet50", name, size) for name in RESNET.get(part, ())]
    if part == "transformers":
        names = (*MODES[:2], "ours")
        wanted = [(task, name, size) for task, size in TRANSFORMERS.items() for name in names]
    plans = [Plan(task, name, 2 if tiny else size, tiny) for task, name, size in wanted]
    uses = part in ("steps", "fp16") and before.exists()
    known = json.loads(before.read_text())["rows"] if uses else {}
    return [plan for plan in plans if "losses" in known.get(str(plan), {"losses"})]


def shorten(model: nn.Module) -> None:
    """Leave one block of each stage or stack in the model, to rehearse."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Sequential | nn.ModuleList) and len(set(map(type, child))) == 1:
                setattr(parent, name, child[:1])


class Training:
    """A model with its optimizer and one batch, trained in a variant."""

    def __init__(self, plan: Plan) -> None:
        ours, by_hand = plan.variant.startswith("ours"), plan.variant != "eager"
        self.plan, self.task, fp16 = plan, tasks.get(plan.task), plan.variant in FP16
        self.dtype = torch.float16 if fp16 else torch.bfloat16
        os.environ.update(switches.variables_of(ours, ours))
        torch.backends.cudnn.benchmark = by_hand
        torch.manual_seed(0)
        self.model: Any = self.task.build_model().to("cuda")
        if plan.tiny:
            shorten(self.model)
        channels_last = by_hand and self.task.image_size is not None
        layout = torch.channels_last if channels_last else torch.contiguous_format
        form = {"fused": True} if by_hand and not ours else {}
        named = {"lr": None, "weight_decay": None, "accelerated": False}
        self.optimizer = self.task.optimizer.build(self.model.parameters(), **named, **form)
        self.scaler = (GradScaler if ours else torch.amp.GradScaler)("cuda", enabled=fp16)
        if ours:
            cuda_graphs.OPTIONS["combo_kernels"] = plan.variant != NO_COMBO
            if plan.variant == OWN_NORMS:
                large_batch_norms.SMALLEST_BYTES = 0
                for name, value in (("devices", ("cuda",)), ("reason_not_applied", lambda: None)):
                    object.__setattr__(large_batch_norms.PASS, name, value)
            config = Config()
            config.compute.fp16, config.compute.bf16 = fp16, not fp16
            self.model, self.optimizer = accelerate(self.model, self.optimizer, config)
        elif channels_last:
            self.model.to(memory_format=layout)
        if plan.variant in MODES:
            self.model.compile(mode=plan.variant)
        self.batch = batch_of(plan, layout)

    def backward(self) -> Tensor:
        """Queue forward and backward pass; return the loss, which is on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", self.dtype):
            loss = self.task.loss(self.model, self.batch)
        self.scaler.scale(loss).backward()
        return loss.detach().clone()

    def update(self) -> None:
        """Queue the update of the weights."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def step(self) -> Tensor:
        """Queue one step; return its loss."""
        loss = self.backward()
        self.update()
        return loss

    def start(self, lock: Callable[[int], None]) -> dict[str, Any]:
        """Take the first steps; the device is this process's while it does not compile."""
        began, free = time.monotonic(), lambda: lock(fcntl.LOCK_UN)
        from torch._inductor.select_algorithm import AlgorithmSelectorCache as Selector

        timed = Selector.benchmark_in_current_process

        def locked(*arguments: Any, **options: Any) -> Any:
            lock(fcntl.LOCK_EX)  # while choices are timed in the middle of a compilation
            timings = timed(*arguments, **options)
            lock(fcntl.LOCK_UN)
            return timings

        Selector.benchmark_in_current_process = staticmethod(locked)
        lock(fcntl.LOCK_EX)
        with backend.observed(free, free, lambda: lock(fcntl.LOCK_EX)):
            losses = [str(float(self.step())) for _ in range(5)]  # JSON has no NaN
            seconds = time.monotonic() - began
            for _ in range(3):  # the compiler's graphs are captured by then
                self.step()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # for the others
        lock(fcntl.LOCK_UN)
        from torch._dynamo.utils import counters

        cache = [counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")]
        times = {"first_steps_seconds": seconds, "processor_seconds": sum(os.times()[:4])}
        return {"batch": self.plan.batch, **times, "hits_misses": cache, "losses": losses}

    def turn(self, seconds: float, last: bool) -> dict[str, Any]:
        """Train for about so long; the last turn has lone steps and the table of kernels too."""
        torch.cuda.reset_peak_memory_stats()
        usual = max(figures_file.seconds_of_calls(self.step, 3)[1:])
        steps = 2 if self.plan.tiny else max(5, min(100, int(seconds / usual)))
        times = figures_file.seconds_of_calls(self.step, steps)
        found: dict[str, Any] = {"device_ms": [1000 * s for s in times], "ended_at": time.time()}
        found["peak_allocated_gib"] = torch.cuda.max_memory_allocated() / 2**30
        found["peak_reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
        if last:
            lone = [self.lone_step() for _ in range(2 if self.plan.tiny else 7)]
            found["host_ms"], found["host_update_ms"] = map(percentiles, zip(*lone, strict=True))
            found |= kernel_table(self.step)
        torch.cuda.empty_cache()
        return found

    def lone_step(self) -> tuple[float, float]:
        """Return milliseconds of the host for a step that finds the queue empty, and its update."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        self.backward()
        before_update = time.perf_counter()
        self.update()
        end = time.perf_counter()
        return 1000 * (end - began), 1000 * (end - before_update)


def batch_of(plan: Plan, layout: torch.memory_format) -> Any:
    """Return a drawn batch on the device, the same for the same arguments."""
    task, draw = tasks.get(plan.task), torch.Generator().manual_seed(1)
    if task.image_size is not None:
        side = 32 if plan.tiny else task.image_size
        images = torch.randn(plan.batch, 3, side, side, generator=draw)
        labels = torch.randint(0, 1000, (plan.batch,), generator=draw)
        return images.to("cuda", memory_format=layout), labels.to("cuda")
    length = 16 if plan.tiny else task.sequence_length
    ids = torch.randint(5, 2000, (plan.batch, length), generator=draw).to("cuda")
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def kernel_table(step: Callable[[], Any]) -> dict[str, Any]:
    """Return launches and kernels of a call: [name, number, microseconds], the longest first."""
    emulated = ctypes.CDLL(None)  # counts, and has no time
    if hasattr(emulated, "fake_gpu_report"):
        emulated.fake_gpu_reset()
        step()
        text = ctypes.create_string_buffer(emulated.fake_gpu_report(None, 0) + 4096)
        emulated.fake_gpu_report(text, len(text))
        lines = [line.split("\t") for line in text.value.decode().splitlines()]
        kernels = [[name, int(times), 0.0] for kind, name, times in lines if kind == "launch"]
    else:
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            step()
            torch.cuda.synchronize()
        events = [e for e in profile.key_averages() if e.device_type.name == "CUDA"]
        kernels = [[e.key[:200], e.count, e.self_device_time_total] for e in events]
    kernels.sort(key=lambda kernel: -kernel[2])
    launches, microseconds = (sum(kernel[place] for kernel in kernels) for place in (1, 2))
    return {"launches": launches, "kernels_ms": microseconds / 1000, "kernels": kernels}


def serve(pipe: Connection, plan: Plan, lock_file: Path) -> None:
    """Train in this process; answer each turn that is asked for over the pipe."""
    try:
        with lock_file.open("w") as file:  # whose lock goes with the process
            training = Training(plan)
            pipe.send(training.start(lambda operation: fcntl.flock(file, operation)))
        while True:
            pipe.send(training.turn(*pipe.recv()))
    except (EOFError, BrokenPipeError):
        pass  # the other end has gone
    except Exception as error:  # the other variants are measured
        pipe.send({"error": f"{type(error).__name__}: {error}"[:400]})


def measure(plans: list[Plan], rows: figures_file.Rows, seconds: tuple[float, float]) -> None:
    """Start all variants, then let the ready ones take turns; `seconds` are those for both."""
    context, pipes = multiprocessing.get_context("spawn"), dict[Plan, Connection]()
    processes: dict[Plan, Any] = {}
    threads = max(1, (os.cpu_count() or 1) // max(1, len(plans)))
    os.environ.update(cache_variables())
    for kind in ("CONV", "GEMM") if plans and plans[0].tiny else ():  # templates take minutes
        os.environ[f"TORCHINDUCTOR_MAX_AUTOTUNE_{kind}_BACKENDS"] = "ATEN"
    for plan in plans:
        own = 3 * threads if plan.variant == MODES[2] else threads
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(own)
        pipes[plan], theirs = context.Pipe()
        arguments = (theirs, plan, rows.path.with_suffix(".lock"))
        processes[plan] = context.Process(target=serve, args=arguments, daemon=True)
        processes[plan].start()
        theirs.close()

    def answer(plan: Plan, *turn: object) -> dict[str, Any]:
        try:
            if turn:
                pipes[plan].send(turn)
            found = pipes[plan].recv()
        except (EOFError, OSError):
            found = {"error": "its process has ended"}
        if "error" in found:
            del pipes[plan]
        return found

    end, waiting = time.monotonic() + seconds[0], dict(pipes)
    while waiting and (ready := wait(waiting.values(), max(0, end - time.monotonic()))):
        for plan in [plan for plan, pipe in waiting.items() if pipe in ready]:
            del waiting[plan]
            rows.add(str(plan), answer(plan))
    for plan in waiting:  # others are to have the device for themselves
        processes[plan].kill()
        processes[plan].join()
        del pipes[plan]
        rows.add(str(plan), {"error": f"not ready after {seconds[0]:.0f} s"})
    times: dict[Plan, list[float]] = {plan: [] for plan in pipes if seconds[1]}
    of_turn = max(0.3, min(2.5, seconds[1] / (2 * len(times) or 1) - 1.2))
    for plan in [*times, *reversed(times)]:
        if plan not in pipes:
            continue
        found = answer(plan, of_turn, bool(times[plan]))
        if new := found.pop("device_ms", []):
            times[plan] += new
            found["samples_per_second"] = 1000 * plan.batch * len(times[plan]) / sum(times[plan])
            found |= {"device_ms": percentiles(times[plan]), "times_ms": list(times[plan])}
        rows.add(str(plan), found)


def ceilings(rows: figures_file.Rows, tiny: bool) -> None:
    """Write the rates of copies and of matrix products, on random values."""
    size, n = (1 << 20, 64) if tiny else (1 << 31, 8192)
    for name in ("copy", "bfloat16", "float16", "tf32", "float32"):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        if name == "copy":
            values = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
            amount, call = 2 * size, partial(torch.empty_like(values).copy_, values)
        else:
            values = torch.randn(n, n, device="cuda").to(getattr(torch, name, torch.float32))
            amount, call = 2 * n**3, partial(torch.mm, values, values)
        seconds = percentiles(figures_file.seconds_of_calls(call, 20)[5:])["p50"]
        rows.add(name, {"bytes_per_second" if name == "copy" else "flops": amount / seconds})


def run() -> int:
    """Run one part; return 1 if a variant failed or was late."""
    parser = figures_file.parser(__doc__)
    parser.add_argument("part", choices=("machine", *RESNET, "transformers"))
    parser.add_argument("--only", nargs="+", help="variants (default: all of the part)")
    parser.add_argument("--seconds", type=float, default=600, help="to be done in")
    parser.add_argument("--tiny", action="store_true", help="small inputs, to rehearse")
    options = parser.parse_args()
    part, out = options.part, options.out
    if not torch.cuda.is_available() or out is None:
        raise InputError("this needs a CUDA device, and --out. Nothing was run.")
    if part == "machine":
        ceilings(figures_file.Rows(out, "A GPU", ()), options.tiny)
        return 0
    plans = plans_of(part, options.tiny, out.with_name("compile.json"))
    plans = [plan for plan in plans if not options.only or plan.variant in options.only]
    rows, seconds = figures_file.Rows(out, f"A GPU: {part}", plans), 0.93 * options.seconds - 2
    first = seconds * {"compile": 1.0, "transformers": 0.65}.get(part, 0.55)
    measure(plans, rows, (first, seconds - first))
    return int(any("error" in row for row in rows.rows.values()))


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(run))

"""Plant faults in the Python side of CUDA, one at a time, and count which the tests notice.

    python tests/fake_gpu/mutation.py [--only TEXT]

A fault is one replacement in one file of a copy of the checkout. The tests named beside it run
there on the fake device, in the orders that bring it out. A fault that survives is printed, and the
exit code is 1. No compiler runs, so a fault takes a few seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

from planted_faults import Fault, try_each

from gallery_lib.system.processes import end_supervised, start_supervised

ROOT = Path(__file__).resolve().parents[2]
STEPS, LOADER = ("inside_steps.py",), ("inside_loader.py",)
OPTIMIZERS = ("inside_optimizers.py",)
KERNELS = ("../kernels/test_compression.py", "-m", "gpu")
STATISTICS = ("../kernels/test_cuda_operators.py", "-m", "gpu")
RANKS, GRAPHS = ("inside_ranks.py",), ("inside_graphs.py",)
STREAMS, TIMED = ("inside_streams.py",), ("inside_training.py", "-k", "figures")


LOADING = "data/loading/device_loader.py"
GROUP = "comm/process_group.py"
LAUNCH, CHANNEL = "kernels/runtime/launch.py", "comm/reducer.py"
SCALER, SYNC_FREE = "optim/grad_scaler.py", "optim/sync_free.py"
COMPILED, CAPTURED = "compiler/backend.py", "compiler/cuda_graphs.py"
CLOCK = "train/session.py"
FAULTS = [
    Fault("a dropped record_stream", LOADING,
          "        tensor.record_stream(torch.cuda.current_stream(tensor.device))\n",
          "        pass\n", LOADER),
    Fault("a record_stream of the device's own stream", LOADING,
          "tensor.record_stream(torch.cuda.current_stream(tensor.device))",
          "tensor.record_stream(torch.cuda.default_stream(tensor.device))", LOADER),
    Fault("a dropped wait for the copy", LOADING,
          "            torch.cuda.current_stream(self._device).wait_event(copied)\n", "", LOADER),
    Fault("the event is recorded before the copy", LOADING,
          "(to_device(pinned, self._device), stream.record_event(), None)",
          "(*reversed((stream.record_event(), to_device(pinned, self._device))), None)",
          LOADER),
    Fault("batches are not copied asynchronously", LOADING,
          "return tensor.pin_memory() if plain and not tensor.is_pinned() else tensor",
          "return tensor", LOADER),
    Fault("the host waits for each copy", LOADING,
          "            torch.cuda.current_stream(self._device).wait_event(copied)\n",
          "            copied.synchronize()\n", LOADER),
    Fault("a kernel goes to the device's own stream", LAUNCH,
          "torch._C._cuda_getCurrentRawStream(index)", "0", STEPS),
    Fault("a missing device guard", LAUNCH, "    if index != current:\n", "    if False:\n", STEPS),
    Fault("the guard takes the wrong device", LAUNCH,
          "with torch.cuda.device(index):", "with torch.cuda.device(0):", STEPS),
    Fault("the architecture of the first device", LAUNCH,
          "torch.cuda.get_device_capability(device)", "torch.cuda.get_device_capability(0)",
          ("inside_streams.py",)),
    Fault("arguments are long whatever the driver", LAUNCH,
          "of_driver >= 12010", "of_driver", OPTIMIZERS),
    Fault("step counts of the first block alone", "kernels/cuda/optimizers.cu",
          "tensor < a.tensors.count; tensor += THREADS", "tensor < THREADS; tensor += THREADS",
          OPTIMIZERS),
    Fault("one block too few", LAUNCH,
          "        launch.blocks,\n        torch._C",
          "        max(1, launch.blocks - 1),\n        torch._C",
          STEPS),
    Fault("one block too many", LAUNCH,
          "        launch.blocks,\n        torch._C",
          "        launch.blocks + 1,\n        torch._C",
          STEPS),
    Fault("the kernel of another dtype is kept", LAUNCH,
          "launch.kernel, launch.defines, index)(",
          "launch.kernel, ELEMENTS[torch.float32], index)(", KERNELS),
    Fault("an error of the driver is not raised", LAUNCH, "    if error:\n", "    if False:\n",
          STREAMS),
    Fault("the host's clock times steps", CLOCK,
          'self.cuda = device_type == "cuda"', "self.cuda = False", TIMED),
    Fault("events are read without waiting for the device", CLOCK,
          "            self._pending[-1][2].synchronize()\n", "", TIMED),
    Fault("the device's trials and compilation count as its peak of memory", "train/loop.py",
          "            session.forget_peak_memory()\n", "            pass\n", TIMED),
    Fault("benchmarks publish host time as device time", "../benchmarks/figures_file.py",
          'if device == "cpu":', "if True:", STREAMS),
    Fault("benchmarks read events without waiting", "../benchmarks/figures_file.py",
          "    torch.cuda.synchronize()\n", "", STREAMS),
    Fault("an operator without fake", "kernels/runtime/operators.py",
          "    torch.library.register_fake(qualified, fake)\n", "", STEPS),
    Fault("a fake in another layout", "kernels/batch_norm.py",
          "device=x.device, memory_format=torch.channels_last)", "device=x.device)", STEPS),
    Fault("the reference stands in for the kernel", "kernels/runtime/operators.py",
          "if place is None or not usage.kernels_run(place):", "if True:", STEPS),
    Fault("a copy dies before its kernel runs", "kernels/gradient_statistics.py",
          '    finish = filled(_Finish, partial,',
          "    address = partial.data_ptr()\n    del partial\n"
          "    _next = torch.full((64,), -1.0, dtype=torch.float64, device=first.device)\n"
          "    finish = filled(_Finish, address,",
          STATISTICS),
    Fault("the last part of the gradients is left out", "kernels/gradient_statistics.py",
          "    for dtype, packing, blocks in parts:\n",
          "    for dtype, packing, blocks in parts[1:]:\n", STATISTICS),
    Fault("every rank takes the first device", GROUP,
          'torch.device("cuda", index)\n', 'torch.device("cuda", 0)\n', RANKS),
    Fault("a group without its device", GROUP,
          "        device_id=own_device if over_nccl else None,\n", "", RANKS),
    Fault("the channel does not wait for the gradients", CHANNEL,
          "        self._stream.wait_stream(torch.cuda.current_stream())\n", "", RANKS),
    Fault("nobody waits for the channel", CHANNEL,
          "            torch.cuda.current_stream().wait_stream(self._stream)\n",
          "            pass\n", RANKS),
    Fault("the channel works on the caller's stream", CHANNEL,
          "        with torch.cuda.stream(self._stream):\n            job()\n",
          "        job()\n", RANKS),
    Fault("a divisor is forgotten", CHANNEL,
          "            self._across(key, buffer, self._world)\n",
          "            self._across(key, buffer)\n", RANKS),
    Fault("the scaler reads its flag on the host", SCALER,
          "            self._skips += found_inf.reshape(()) != 0\n",
          "            self._skips += int(bool(found_inf))\n", STEPS),
    Fault("the overflow flag is dropped", SYNC_FREE,
          '("grad_scale", "found_inf")', '("grad_scale", "nothing")', STEPS),
    Fault("the scale is dropped", SYNC_FREE,
          '("grad_scale", "found_inf")', '("nothing", "found_inf")', STEPS),
    Fault("the labels' stride is ignored", "kernels/cross_entropy.py",
          "logits, logits.stride(0),", "logits, logits.shape[1] + 1,", STEPS),
    Fault("the gradient's launch has one block", "kernels/cross_entropy.py",
          '"cross_entropy_gradient", logits, logits.shape[0],',
          '"cross_entropy_gradient", logits, 1,', STEPS),
    Fault("outputs of a captured model are not copied", CAPTURED,
          "    return value.clone()\n", "    return value\n", GRAPHS),
    Fault("gradients of a captured model are not moved", CAPTURED,
          "            each.move()\n", "            pass\n", GRAPHS),
    Fault("gradients are moved for one model alone", CAPTURED,
          "for each in list(_all_gradients):", "for each in (gradients,):", GRAPHS),
    Fault("gradients are looked for at the next call", CAPTURED,
          "queue_callback(look)", "queue_callback(lambda: None)", GRAPHS),
    Fault("gradients that no weight keeps are forgotten", CAPTURED,
          "return False\n\n    def _look", "return True\n\n    def _look", GRAPHS),
    Fault("frozen weights of a captured model are forgotten", CAPTURED,
          "list(model.parameters())  # frozen",
          "[p for p in model.parameters() if p.requires_grad]  # frozen", GRAPHS),
    Fault("a stream for each pass", LOADING,
          "_stream_of_copies(torch.cuda.current_device())", "torch.cuda.Stream(device)", LOADER),
    Fault("states in another layout are taken", SYNC_FREE,
          "all(same_layout(p, t) for t in tensors[1:])", "True", OPTIMIZERS),
    Fault("launches are kept whatever has moved", SYNC_FREE,
          "seen[2] != kept[number][0]", "False", OPTIMIZERS),
    Fault("gradients are read where they lay", "kernels/optimizer_step.py",
          "if gradients is not None:", "if False:", OPTIMIZERS),
    Fault("the device's random state is not saved", "data/loading/random_states.py",
          '        states["cuda"] = torch.cuda.get_rng_state()\n', "        pass\n",
          ("inside_checkpoint.py",)),
    Fault("gradients are kept alive", CAPTURED,
          "self._seen[id(one)] = weakref.ref(one)",
          "self._seen[id(one)] = (lambda kept=one: kept)", GRAPHS),
    Fault("a failed capture leaves its stream", CAPTURED,
          "with torch.cuda.stream(torch.cuda.current_stream()):", "if True:", GRAPHS),
    Fault("a failed capture leaves the generator in it", CAPTURED,
          "generator.graphsafe_set_state(generator.clone_state())", "pass", GRAPHS),
    Fault("every shape shares code", COMPILED,
          "ByShape(model, make, static_shapes)", "ByShape(model, make, 0)", GRAPHS),
    Fault("the option for graphs is ignored", COMPILED,
          " and options.cuda_graphs", "", GRAPHS),
]  # fmt: skip
ORDERS = ("late", "early", "random:1")
SECONDS = 180
"""A test that takes longer hangs: the slowest takes a minute."""
_RUN = """
import sys
from fake_gpu import running
name, order, *options = sys.argv[1:]
path = f"tests/fake_gpu/{name}"
if name == "inside_ranks.py":
    running.code_on_ranks(path, ranks=2, order=order)
else:
    device = {"order": order, "devices": 2, "architectures": "90,80"}
    running.pytest_on_device(path, "-x", "--tb=line", *options, **device)
"""


def noticed(fault: Fault) -> str | None:
    """Return the order in which the tests notice the fault, or None."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        left_out = shutil.ignore_patterns("__pycache__", "results")
        for name in ("gallery_lib", "tests", "benchmarks"):
            shutil.copytree(ROOT / name, copy / name, ignore=left_out)
        shutil.copy(ROOT / "pyproject.toml", copy)
        fault.plant(copy / "gallery_lib")
        places = os.pathsep.join(str(copy / part) for part in ("tests", "tests/helpers", "."))
        variables = {"PYTHONPATH": places, "GALLERY_CACHE_DIR": str(ROOT / ".cache")}
        silent = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        for order in ORDERS:
            words = [sys.executable, "-c", _RUN, fault.tests[0], order, *fault.tests[1:]]
            process = start_supervised(words, variables, cwd=copy, **silent)
            try:
                if process.wait(SECONDS):
                    return order
            except subprocess.TimeoutExpired:  # ranks that wait for each other
                return f"{order}, by hanging"
            finally:
                end_supervised(process)
    return None


if __name__ == "__main__":
    sys.exit(try_each(FAULTS, noticed, __doc__))

"""One process of a run that is compared, and the socket over which it gets its turn.

interleaved.py and untimed.py start these processes; `launcher/forked.py` calls `main` in each. A
variant trains its warm-up steps, runs the gradient probe, then trains a block of steps whenever it
has the turn. The reference does the first few steps and the probe in float64, and ends. A second
run does all steps of a variant again, from weights that are moved by a rounding.

The comparing process hands out turns over a Unix socket in a folder that no other user may enter.
Each rank connects and says whose it is. From then on it trains only between a `go` from the server
and its own next `idle`. Waiting costs no CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.comm import process_group
from gallery_lib.config import TrainConfig
from gallery_lib.console.progress import PROBE, TURNS
from gallery_lib.data.loading.nesting import tensors_in
from gallery_lib.errors import RunFailed
from gallery_lib.launcher import worker
from gallery_lib.measure import variants
from gallery_lib.measure.comparison import first_pass
from gallery_lib.system.files import PrivateFolder
from gallery_lib.train.loop import train
from gallery_lib.train.session import Observer, Session
from gallery_lib.tune.choice import without_dropout

# Number of first batches that are probed, and that are shown to be the same. Half precision needs
# as many to average its noise out. In fp32 a batch tells flips from faults.
PROBE_BATCHES = 4
SAMPLE = 512  # gradient elements kept per parameter and batch
_PIECE = 2**22
ROLE_VARIABLE = "GALLERY_MEASURE"
PROBE_FILE = "probe.pt"
WORKER = __name__  # the module whose `main` launched processes run
# Names of the roles that take no turns, as progress shows them.
REFERENCE, SECOND = "reference in float64", "second run"
# Relative size by which a second run moves weights: about the rounding of a sum of products.
_ROUNDING = {"O0": 2**-21, "O1": 2**-10}
# Interval of the caller's check, which would take time from the cores that are being measured.
_CHECK_SECONDS = 0.5
_ENDING_SECONDS = 0.05


# --------------------------------------------------------------------------------------------------
# Turns


class TurnServer:
    """Server that hands out turns; `address` goes to the runs, and `close` ends it."""

    def __init__(self) -> None:
        self._folder = PrivateFolder()
        self.address = str(self._folder.path / "turns")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen(64)
        self._ranks: dict[str, list[Connection]] = {}  # by run

    def wait_idle(self, run: str, world_size: int, check: Callable[[], None]) -> None:
        """Return when every rank of `run` is idle; meanwhile call `check`, which may raise."""
        idle: set[Connection] = set()
        while True:
            waiting = [rank for rank in self._ranks.get(run, ()) if rank not in idle]
            for ready in wait([self._socket, *waiting], _CHECK_SECONDS):
                try:
                    if isinstance(ready, Connection):
                        ready.recv_bytes()
                        idle.add(ready)
                    else:
                        rank = Connection(self._socket.accept()[0].detach())
                        self._ranks.setdefault(rank.recv_bytes().decode(), []).append(rank)
                except (EOFError, OSError):
                    time.sleep(_ENDING_SECONDS)  # the process is ending: the check will say why
            if len(idle) == world_size:
                return
            check()

    def go(self, run: str) -> None:
        """Give `run` the turn."""
        for rank in self._ranks[run]:
            with contextlib.suppress(OSError):  # the next check says what happened to it
                rank.send_bytes(b"go")

    def close(self) -> None:
        """Stop handing out turns; runs that still wait end with an error."""
        self._socket.close()
        self._folder.close()
        for ranks in self._ranks.values():
            for rank in ranks:
                rank.close()


class TurnClient:
    """Connection of one rank of `run` to the server of turns."""

    def __init__(self, address: str, run: str) -> None:
        self._connection = Client(address, family="AF_UNIX")
        self._connection.send_bytes(run.encode())

    def wait(self) -> None:
        """Say that this rank is idle, and return when it has the turn; RunFailed without server."""
        try:
            self._connection.send_bytes(b"idle")
            self._connection.recv_bytes()
        except (EOFError, OSError):
            raise RunFailed("the process that hands out turns is gone.") from None


# --------------------------------------------------------------------------------------------------
# Gradient probe: a variant's gradients on a few batches, reduced to what the parity check needs.
#
# For every parameter it keeps, for each of the batches, the squared norm of its gradient and a
# fixed random sample of its elements. The probe runs on the run's own model (compiled, laid out,
# distributed as it is), with the initial weights. It puts everything back afterwards.


def initial_state(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """Return a copy, on the CPU, of the model's weights and buffers.

    It lies in an unlinked file in `folder`, mapped into memory: it takes none that the run needs.
    """
    path = folder / f"initial-{os.getpid()}.pt"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        torch.save(model.state_dict(), path)
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    finally:
        path.unlink(missing_ok=True)


def digest(value: Any) -> str:
    """Return the SHA-256 of shapes, dtypes and bits, in logical order, of the tensors inside."""
    result = hashlib.sha256()
    for tensor in tensors_in(value):
        result.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        result.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return result.hexdigest()


def differences_of_start(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return what two probed runs did not share at their start: initial weights, first batches."""
    differences = ["initial weights"] if one["weights"] != other["weights"] else []
    pairs = zip(one["first_batches"], other["first_batches"], strict=False)
    return differences + [f"batch {number}" for number, (a, b) in enumerate(pairs, 1) if a != b]


def _sample_indices(elements: int) -> Tensor:
    if elements <= SAMPLE:
        return torch.arange(elements)
    return torch.randint(elements, (SAMPLE,), generator=torch.Generator().manual_seed(elements))


def _square_norm(gradient: Tensor) -> float:
    # A piece at a time: a copy in float64 as a whole might not fit.
    return sum(float(piece.double().square().sum()) for piece in gradient.split(_PIECE))


def run_probe(
    session: Session, initial: dict[str, Tensor], batches: list[Any], *, restore: bool = True
) -> dict[str, Any]:
    """Return gradient statistics on `batches` at the initial weights, free of the loss scale.

    The session's state is as before. Without `restore`, which spares a copy of the weights, the
    model has the initial ones.
    """
    model = session.plain
    current = (
        {name: value.detach().clone() for name, value in model.state_dict().items()}
        if restore
        else initial
    )
    model.load_state_dict(initial)
    square_norms: dict[str, list[float]] = {}
    samples: dict[str, list[list[float]]] = {}
    for number, batch in enumerate(batches):
        session.optimizer.zero_grad(set_to_none=True)
        session.backward(session.forward(batch))
        scale = session.scaler.get_scale()
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            gradient = p.grad.detach().contiguous().flatten()  # logical order in any layout
            indices = _sample_indices(gradient.numel()).to(gradient.device)
            # Batches that give it no gradient count as zeros.
            norms = square_norms.setdefault(name, [0.0] * len(batches))
            kept = samples.setdefault(name, [[0.0] * len(indices) for _ in batches])
            norms[number] = _square_norm(gradient) / scale**2
            kept[number] = (gradient[indices].double() / scale).tolist()
    session.optimizer.zero_grad(set_to_none=True)
    model.load_state_dict(current)
    return {"batches": len(batches), "square_norms": square_norms, "samples": samples}


# --------------------------------------------------------------------------------------------------
# Observers of the training


@dataclass(frozen=True)
class Role:
    """Orders for a process that a comparison starts, as JSON in an environment variable."""

    name: str  # of the variant, or REFERENCE or SECOND
    address: str | None = None  # of the turn server; None: it takes no turns
    warmup_steps: int = 0
    block_steps: int = 0
    recipe: list[str] = field(default_factory=list)  # variants.py
    move: int = 0  # seed of the rounding by which a second run's weights are moved

    def variable(self) -> dict[str, str]:
        """Return the variable that carries this role."""
        return {ROLE_VARIABLE: json.dumps(dataclasses.asdict(self))}


class Probing(Observer):
    """Observer that collects the first batches, keeps the initial weights, and probes gradients."""

    takes_turns = True

    def __init__(self, role: Role, config: TrainConfig) -> None:
        self.role, self.config = role, config
        self.initial: dict[str, Tensor] = {}
        self.batches: list[Any] = []

    def model_built(self, model: nn.Module) -> None:
        """Switch dropout off and keep the initial weights."""
        without_dropout(model)  # dropout would draw different numbers in each run
        assert self.config.run_dir is not None
        self.initial = initial_state(model, Path(self.config.run_dir))

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        """Keep the first batches."""
        if step < PROBE_BATCHES:
            self.batches.append(batch)

    def probe(self, session: Session, *, restore: bool) -> None:
        """Run the probe and write its result, from rank 0."""
        session.phases.begin(PROBE)
        result = run_probe(session, self.initial, self.batches, restore=restore)
        if session.log.rank == 0:
            result |= {
                "weights": digest(self.initial),
                "first_batches": [digest(batch) for batch in self.batches],
            }
            torch.save(result, session.log.run_dir / PROBE_FILE)
        del self.batches[1:]


@contextlib.contextmanager
def _loading_stopped() -> Iterator[None]:
    """Context: stop the processes that load data, so that they fill no queue while others train.

    A turn then finds as many batches as the last one left, as if there had been no wait.
    """
    processes = [p.pid for p in multiprocessing.active_children() if p.pid is not None]
    _send(signal.SIGSTOP, processes)
    try:
        yield
    finally:
        _send(signal.SIGCONT, processes)


def _send(number: signal.Signals, processes: Sequence[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


class TakingTurns(Probing):
    """Observer of a variant, which takes turns with the others."""

    def __init__(self, role: Role, config: TrainConfig) -> None:
        super().__init__(role, config)
        assert role.address is not None
        self.turns = TurnClient(role.address, role.name)

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        """Run the probe after the warm-up, and wait for the turn before each block of steps."""
        super().before_step(session, step, batch)
        counted = step - self.role.warmup_steps
        if counted < 0 or counted % self.role.block_steps:
            return
        session.clock.pause()
        if counted == 0:
            self.probe(session, restore=True)
            session.forget_peak_memory()
            session.phases.begin(TURNS)
        with _loading_stopped():
            self.turns.wait()
        session.clock.resume()

    def after_training(self, session: Session) -> None:
        """Wait for the turn in which the run ends."""
        self.turns.wait()


class WithoutTurns(Probing):
    """Observer of a run without turns: in float64 (REFERENCE), or from moved weights (SECOND)."""

    def model_built(self, model: nn.Module) -> None:
        """Prepare the model as for a variant, from moved weights or then in float64."""
        if self.role.name == SECOND:
            _move(model, _ROUNDING[self.config.amp_level], self.role.move)
        super().model_built(model)
        if self.role.name == REFERENCE:
            first_pass.widen(model)

    def after_training(self, session: Session) -> None:
        """Run the probe, which can use the memory of the optimizer: nothing is trained any more."""
        session.optimizer.state.clear()
        self.probe(session, restore=False)


def _move(model: nn.Module, rounding: float, seed: int) -> None:
    """Move the weights by so much relative to them, alike on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                noise = torch.randn(p.shape, generator=generator)
                p.mul_((1.0 + rounding * noise).to(p.device, p.dtype))


def body(config: TrainConfig) -> None:
    """Train in the role that the environment names."""
    role = Role(**json.loads(os.environ[ROLE_VARIABLE]))
    if role.name == REFERENCE and ".py:" in config.model and process_group.rank() == 0:
        # The reference comes first, and is not timed.
        first_pass.try_once(config, process_group.device())
    observer = (TakingTurns if role.address else WithoutTurns)(role, config)
    train(config, observer, variants.recipe(role.recipe))


def main(arguments: Sequence[str]) -> None:
    """Train in the role that the environment names, and end this process."""
    worker.end_after(body, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])

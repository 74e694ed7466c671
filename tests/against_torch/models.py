"""Models of the kinds that people train, small enough for a step of a millisecond.

A model takes a batch `x` [N, *shape] and returns tensors in any nesting. `loss` reduces them and
the targets [N] to one number. Hooks that a model registers count their calls in CALLS.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

CALLS: Counter[str] = Counter()
"""Number of calls of hooks in this process, by name."""


@dataclass(frozen=True)
class Model:
    """An entry of the table of models, and what it asks of the rest of a case."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = (6,)
    dtype: torch.dtype = torch.float32
    optimizers: tuple[str, ...] = ()  # only these; none: any
    rounds: str = ""  # why the product may round differently even in Config()'s eager form
    refusal: str = ""  # why an InputError is a right answer, on several processes
    decides: bool = False  # whether rounding may choose another value of a max pooling


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Answer:
    score: Tensor
    hidden: Tensor


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in `value`, in order."""
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, Answer):
        value = vars(value)
    for part in value.values() if isinstance(value, dict) else value:
        yield from tensors(part)


def loss(outputs: Any, target: Tensor) -> Tensor:
    """Return the loss [] of outputs (each [N, …]) and targets [N]."""
    total: Any = 0.0
    for output in tensors(outputs):
        real = torch.view_as_real(output) if output.is_complex() else output
        flat = torch.tanh(real.flatten(1))
        score = flat.sum(1) / max(1, flat.shape[1]) ** 0.5
        total = total + (score - target.to(score.dtype)).square().mean()
    return total


class Net(nn.Module):
    """Module of named layers, whose outputs a given function computes."""

    def __init__(self, compute: Callable[[Any, Tensor], Any], **layers: Any) -> None:
        super().__init__()
        self.compute = compute
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embedding(x)
        return self.head(self.norm(y + self.attention(y, y, y, need_weights=False)[0]))


class Counting(nn.Module):
    """Model with buffers that forward changes: a count, an average, and one that is not saved."""

    count: Tensor
    average: Tensor
    scratch: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("scratch", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.training:
            with torch.no_grad():
                self.count += 1
                self.average.lerp_(y.mean(0), 0.1)
                self.scratch.mul_(1.01)
        return y - self.average.clone() * self.scratch.clone()


class Hooked(nn.Module):
    """Model with hooks of every kind: on the whole model, on a layer and on a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_forward_pre_hook(lambda *_: _count("root pre"))
        self.register_forward_hook(lambda *_: _count("root forward"))
        self.first.register_forward_hook(
            lambda _m, _i, output: (_count("layer forward"), output * 1.5)[1]
        )
        self.second.register_full_backward_hook(lambda *_: _count("layer backward"))
        self.first.weight.register_hook(lambda g: (_count("gradient"), g * 0.5)[1])
        self.second.weight.register_post_accumulate_grad_hook(lambda _: _count("accumulated"))
        self._register_state_dict_hook(lambda *_: _count("state dict"))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def _count(name: str) -> None:
    if not torch.compiler.is_compiling():
        CALLS[name] += 1


class OwnState(nn.Module):
    """Model with extra state in its state dict, and with attributes named as a wrapper's."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(6, 4)
        self.steps = 0

    @property
    def device(self) -> torch.device:
        return self.module.weight.device

    def get_extra_state(self) -> dict[str, int]:
        return {"steps": self.steps}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        context.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = context.saved_tensors
        return gradient * (x > 0) + 0.01 * gradient


def _tied() -> nn.Module:
    embedding, decoder = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
    decoder.weight = embedding.weight
    return nn.Sequential(OrderedDict(embedding=embedding, tanh=nn.Tanh(), decoder=decoder))


def _mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    return model


def _lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3))


def _lazy_with_values() -> nn.Module:
    model = _lazy()
    model(torch.zeros(2, 6))
    return model


def _compiled() -> nn.Module:
    model = _mlp()
    model.compile(backend="eager")
    return model


def _recurrent(kind: Any) -> Callable[[], nn.Module]:
    return lambda: Net(
        lambda s, x: s.head(s.cell(x)[0][:, -1]),
        cell=kind(4, 5, batch_first=True),
        head=nn.Linear(5, 3),
    )


def _two(outputs: Callable[[Tensor, Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: Net(
        lambda s, x: outputs(s.first(x), s.second(x)), first=nn.Linear(6, 4), second=nn.Linear(6, 2)
    )


def _trunk() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh())


IMAGE, TOKENS, SERIES = (3, 8, 8), (5,), (6, 4)
CONVOLUTION = "convolutions in channels_last are another of oneDNN's algorithms"
ADDRESS = torch.int64
UNUSED = "parameters that no output depends on need find_unused_parameters"


def _chain(layers: Callable[[], tuple[nn.Module, ...]], **more: Any) -> Model:
    return Model(lambda: nn.Sequential(*layers()), **more)


def _images(layers: Callable[[], tuple[nn.Module, ...]], flat: int, **more: Any) -> Model:
    more |= {"shape": IMAGE, "rounds": CONVOLUTION}
    return _chain(lambda: (*layers(), nn.Flatten(), nn.Linear(flat, 3)), **more)


def _normed(norm: Callable[[], nn.Module], **more: Any) -> Model:
    end = (nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    return _images(lambda: (nn.Conv2d(3, 8, 3, padding=1), norm(), *end), 32, **more)


MODELS: dict[str, Model] = {
    "mlp": Model(_mlp),
    "wide": _chain(lambda: (nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 50))),
    "convolution": _images(lambda: (nn.Conv2d(3, 4, 3), nn.ReLU()), 144),
    "channels_last": _images(
        lambda: (nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), nn.ReLU()), 144
    ),
    "batch_norm": _normed(lambda: nn.BatchNorm2d(8)),
    "group_norm": _normed(lambda: nn.GroupNorm(2, 8)),
    "instance_norm": _normed(lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
    "sync_batch_norm": _normed(lambda: nn.SyncBatchNorm(8), refusal="SyncBatchNorm needs GPUs"),
    "view_after_convolution": Model(
        lambda: Net(
            lambda s, x: s.head(F.relu(s.convolution(x)).view(x.size(0), -1)),
            convolution=nn.Conv2d(3, 4, 3),
            head=nn.Linear(4 * 36, 3),
        ),
        IMAGE,
        rounds=CONVOLUTION,
    ),
    "depthwise": _images(lambda: (nn.Conv2d(3, 6, 3, groups=3), nn.MaxPool2d(2)), 54, decides=True),
    "upsampling": _images(
        lambda: (nn.Conv2d(3, 2, 3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(3)),
        32,
    ),
    "transposed": _images(lambda: (nn.ConvTranspose2d(3, 2, 3, stride=2), nn.AvgPool2d(4)), 32),
    "convolution_1d": _chain(
        lambda: (nn.Conv1d(6, 4, 3), nn.Flatten(), nn.Linear(8, 3)), shape=SERIES
    ),
    "attention": Model(Attention, TOKENS, ADDRESS),
    "transformer": Model(
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True),
        SERIES,
    ),
    "dropout": _chain(lambda: (_trunk(), nn.Dropout(0.3), nn.Linear(8, 3))),
    "lstm": Model(_recurrent(nn.LSTM), SERIES),
    "gru": Model(_recurrent(nn.GRU), SERIES),
    "layer_norm": _chain(lambda: (nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))),
    "tied": Model(_tied, TOKENS, ADDRESS),
    "frozen": Model(_frozen),
    "shared": _chain(lambda: ((layer := nn.Linear(6, 6)), nn.Tanh(), layer, nn.Linear(6, 2))),
    "sparse": Model(
        lambda: Net(lambda s, x: s.table(x).mean(1), table=nn.Embedding(11, 4, sparse=True)),
        TOKENS,
        ADDRESS,
        optimizers=("sgd", "sparse_adam", "adagrad"),
    ),
    "complex": _chain(
        lambda: (nn.Linear(6, 4, dtype=torch.complex64), nn.Linear(4, 2, dtype=torch.complex64)),
        dtype=torch.complex64,
        optimizers=("sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad"),
    ),
    "zero_size": Model(
        lambda: Net(
            lambda s, x: (s.layer(x), s.empty.expand(len(x), 0)),
            layer=nn.Linear(6, 3),
            empty=nn.Parameter(torch.zeros(1, 0)),
        )
    ),
    "scalar": Model(
        lambda: Net(
            lambda s, x: s.layer(x) * s.scale,
            layer=nn.Linear(6, 3),
            scale=nn.Parameter(torch.tensor(1.5)),
        )
    ),
    "double": Model(lambda: _mlp(torch.float64), dtype=torch.float64),
    "bfloat16": Model(lambda: _mlp(torch.bfloat16), dtype=torch.bfloat16),
    "several_dtypes": Model(
        lambda: Net(
            lambda s, x: (s.single(x), s.wide(x.double())),
            single=nn.Linear(6, 3),
            wide=nn.Linear(6, 2, dtype=torch.float64),
        )
    ),
    "hooks": Model(Hooked),
    "lazy": Model(_lazy_with_values),
    "lazy_without_values": Model(
        _lazy,
        optimizers=("sgd",),
        refusal="lazy parameters have no shape that ranks could share",
    ),
    "checkpointed": Model(
        lambda: Net(
            lambda s, x: s.head(checkpoint(s.trunk, x, use_reentrant=False)),
            trunk=_trunk(),
            head=nn.Linear(8, 3),
        )
    ),
    "weight_norm": _chain(
        lambda: (parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
    ),
    "weight_norm_of_old": _chain(lambda: (nn.utils.weight_norm(nn.Linear(6, 8)), nn.Linear(8, 3))),
    "spectral_norm": _chain(
        lambda: (parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 3))
    ),
    "several_outputs": Model(_two(lambda a, b: (a, [b, a + 1]))),
    "dict_output": Model(_two(lambda a, b: OrderedDict(first=a, second=b))),
    "named_tuple_output": Model(_two(Pair)),
    "dataclass_output": Model(_two(Answer)),
    "unused": Model(_two(lambda a, b: a), refusal=UNUSED),
    "branches": Model(  # each rank uses one of them
        lambda: Net(
            lambda s, x: s.layers[dist.get_rank() % 2 if dist.is_initialized() else 0](x),
            layers=nn.ModuleList(nn.Linear(6, 3) for _ in range(3)),
        ),
        refusal=UNUSED,
    ),
    "buffers": Model(Counting),
    "own_state": Model(OwnState),
    "own_function": Model(
        lambda: Net(
            lambda s, x: s.head(OwnFunction.apply(s.trunk(x))), trunk=_trunk(), head=nn.Linear(8, 3)
        )
    ),
    "containers": Model(
        lambda: Net(
            lambda s, x: s.layers["a"](x) * s.scales[0] + s.scales[1],
            layers=nn.ModuleDict({"a": nn.Linear(6, 3)}),
            scales=nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))]),
        )
    ),
    "transposed_weight": Model(
        lambda: Net(lambda s, x: x @ s.weight, weight=nn.Parameter(torch.randn(4, 6).t() * 0.3))
    ),
    "compiled_before": Model(_compiled),
    "wrapped_by_compile": Model(lambda: torch.compile(_mlp(), backend="eager")),
}

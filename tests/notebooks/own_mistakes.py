"""Table of mistakes in the three functions of a reader, and what is said of each."""

from __future__ import annotations

CELL = """\
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.second(self.first(x).relu())


def build_model():
    return Model()


def loss(model, batch):
    x, y = batch
    logits = model(x)
    return F.cross_entropy(logits, y)


def make_batch(batch_size, generator):
    x = torch.randn(batch_size, 8, generator=generator)
    y = torch.randint(3, (batch_size,), generator=generator)
    return x, y
"""
BATCH_SIZE = 4


def changed(old: str, new: str, more: str = "") -> str:
    assert CELL.count(old) == 1
    return CELL.replace(old, new) + more


OUTPUT_CLASS = """

class Output(dict):
    logits = property(lambda self: self["logits"])
"""
RETURN_LOGITS = "return self.second(self.first(x).relu())"
RETURN_LOSS = "return F.cross_entropy(logits, y)"

MISTAKES: dict[str, tuple[str, str, str]] = {
    # what is wrong: the cell, what the message says, the line that it shows
    "a loss that is a vector": (
        changed(RETURN_LOSS, 'return F.cross_entropy(logits, y, reduction="none")'),
        "The loss has the shape [4]; it must be one number. Return its `.mean()`.",
        'return F.cross_entropy(logits, y, reduction="none")',
    ),
    "a loss that is a number": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y).item()"),
        "The loss must be a tensor, and is a float. Leave `.item()` out.",
        "return F.cross_entropy(logits, y).item()",
    ),
    "a loss that is not returned": (
        changed(RETURN_LOSS, "F.cross_entropy(logits, y)"),
        "The loss must be a tensor, and is nothing (None): is a `return` missing?",
        "def loss(model, batch):",
    ),
    "a loss that is detached": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y).detach()"),
        "The loss does not depend on the model's parameters. Leave out `.detach()`",
        "return F.cross_entropy(logits, y).detach()",
    ),
    "a loss of predicted classes": (
        changed(RETURN_LOSS, "return (logits.argmax(1) != y).float().mean()"),
        "The loss does not depend on the model's parameters.",
        "return (logits.argmax(1) != y).float().mean()",
    ),
    "a loss that is NaN at once": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y) + (logits.sum() * 0).log()"),
        "The loss of the first batch is -inf.",
        "return F.cross_entropy(logits, y) + (logits.sum() * 0).log()",
    ),
    "a gradient that is NaN at once": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y) + (logits.sum() * 0).sqrt()"),
        "The gradient of `first.weight` is not finite in the first step. Look for `sqrt(0)`",
        "return F.cross_entropy(logits, y) + (logits.sum() * 0).sqrt()",
    ),
    "an object from the model, in the loss": (
        changed(
            RETURN_LOGITS, "return Output(logits=self.second(self.first(x).relu()))", OUTPUT_CLASS
        ),
        "not Output. Take its tensor: `.logits`",
        RETURN_LOSS,
    ),
    "an object from the model, used like a tensor": (
        changed(
            RETURN_LOGITS, "return Output(logits=self.second(self.first(x).relu()))", OUTPUT_CLASS
        ).replace("(logits, y)", "(logits.flatten(1), y)"),
        "has no attribute 'flatten'. Take its tensor: `.logits`",
        "return F.cross_entropy(logits.flatten(1), y)",
    ),
    "a tuple from the model": (
        changed(RETURN_LOGITS, "return self.second(self.first(x).relu()), x"),
        "not tuple. Take the element that you mean: `[0]`, say.",
        RETURN_LOSS,
    ),
    "nothing from the model": (
        changed(RETURN_LOGITS, "self.second(self.first(x).relu())"),
        "not NoneType. Is a `return` missing?",
        RETURN_LOSS,
    ),
    "a layer of another size": (
        changed("torch.randn(batch_size, 8,", "torch.randn(batch_size, 10,"),
        "mat1 and mat2 shapes cannot be multiplied (4x10 and 8x16)",
        RETURN_LOGITS,
    ),
    "targets of another number": (
        changed("torch.randint(3, (batch_size,)", "torch.randint(3, (2 * batch_size,)"),
        "Expected input batch_size (4) to match target batch_size (8)",
        RETURN_LOSS,
    ),
    "two shapes that do not fit": (
        changed(RETURN_LOSS, "return (logits - torch.ones(5, 7)).mean()"),
        "The size of tensor a (3) must match the size of tensor b (7)",
        "return (logits - torch.ones(5, 7)).mean()",
    ),
    "a class that the model has no output for": (
        changed(
            "torch.randint(3,",
            "torch.full_like(torch.empty(0), 0) if False else 5 + torch.randint(1,",
        ),
        "Target 5 is out of bounds. Classes count from 0",
        RETURN_LOSS,
    ),
    "the model on a GPU that is not there": (
        changed("return Model()", "return Model().cuda()"),
        'Leave `.cuda()` and `device="cuda"` out',
        "return Model().cuda()",
    ),
    "a batch on a GPU that is not there": (
        changed("    return x, y", '    return x.to("cuda"), y'),
        "Leave `.cuda()`",
        'return x.to("cuda"), y',
    ),
    "an argument that the model lacks": (
        changed("def forward(self, x):", "def forward(self, x, mask):"),
        "missing 1 required positional argument: 'mask'",
        "logits = model(x)",
    ),
    "an argument that the model does not have": (
        changed("logits = model(x)", "logits = model(x, mask=None)"),
        "got an unexpected keyword argument 'mask'",
        "logits = model(x, mask=None)",
    ),
    "build_model with an argument": (
        changed("def build_model():", "def build_model(width):"),
        "`build_model` is called as `build_model()`, and takes (width).",
        "def build_model(width):",
    ),
    "loss with three arguments": (
        changed("def loss(model, batch):", "def loss(model, x, y):"),
        "`loss` is called as `loss(model, batch)`, and takes (model, x, y).",
        "def loss(model, x, y):",
    ),
    "make_batch without a generator": (
        changed("def make_batch(batch_size, generator):", "def make_batch(batch_size):"),
        "`make_batch` is called as `make_batch(batch_size, generator)`, and takes (batch_size).",
        "def make_batch(batch_size):",
    ),
    "no batch": (
        changed("    return x, y", "    x, y"),
        "Make_batch returns nothing (None). Is a `return` missing?",
        "def make_batch(batch_size, generator):",
    ),
    "a batch of arrays": (
        changed("    return x, y", "    return x.numpy(), y.numpy()"),
        (
            "Make_batch returns ndarray, with no tensor in it: `torch.from_numpy(array)` makes an "
            "array a tensor."
        ),
        "return x.numpy(), y.numpy()",
    ),
    "a batch of one array and a tensor": (
        changed("    return x, y", "    return x.numpy(), y"),
        "`torch.from_numpy(array)` makes it a tensor.",
        "return self.second(self.first(x).relu())",
    ),
    "a batch of another size": (
        changed("torch.randn(batch_size, 8,", "torch.randn(7, 8,").replace("(batch_size,)", "(7,)"),
        (
            "Make_batch(4, generator) returns [7, 8] and [7], of another size than 4. "
            "Use its first argument."
        ),
        "return x, y",
    ),
    "a model without parameters": (
        changed("return Model()", "return nn.Flatten()"),
        "The model has no parameters to train.",
        "return nn.Flatten()",
    ),
    "a model whose layers are in a list": (
        changed(
            "self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)",
            "self.layers = [nn.Linear(8, 16), nn.Linear(16, 3)]",
        ),
        "The model has no parameters to train. Make its layers attributes of the module",
        "return Model()",
    ),
    "a class for a model": (
        changed("return Model()", "return Model"),
        "Build_model returns the class Model; call it: `Model()`.",
        "return Model",
    ),
    "no model": (
        changed("return Model()", "Model()"),
        (
            "Build_model must return a `torch.nn.Module`, and returns nothing (None): "
            "is a `return` missing?"
        ),
        "def build_model():",
    ),
    "no gradient for any parameter": (
        changed("logits = model(x)", "logits = model(x).detach().requires_grad_()"),
        "The loss does not depend on the model's parameters.",
        RETURN_LOSS,
    ),
    "whole numbers as inputs": (
        changed(
            "torch.randn(batch_size, 8, generator=generator)",
            "torch.randint(9, (batch_size, 8), generator=generator)",
        ),
        "convert inputs with `.float()`",
        RETURN_LOGITS,
    ),
    "floating point as class numbers": (
        changed("    return x, y", "    return x, y.float()"),
        "class numbers and tokens with `.long()`",
        RETURN_LOSS,
    ),
    "whole numbers in a loss": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits.long(), y)"),
        "convert inputs with `.float()`",
        "return F.cross_entropy(logits.long(), y)",
    ),
    "a name of another cell": (
        changed("nn.Linear(16, 3)", "nn.Linear(16, CLASSES)"),
        "name 'CLASSES' is not defined. The training processes run this code as a file of its own",
        "self.first, self.second = nn.Linear(8, 16), nn.Linear(16, CLASSES)",
    ),
    "a module that is not there": (
        changed("return Model()", "import no_such_module; return Model()"),
        "No module named 'no_such_module'. Install it",
        "import no_such_module; return Model()",
    ),
    "a tensor changed in place": (
        changed(RETURN_LOGITS, "h = self.first(x).exp(); y = self.second(h); h += 1; return y"),
        "Write `x = x + …`",
        RETURN_LOSS,
    ),
    "an error of the reader's own": (
        changed("logits = model(x)", 'raise ValueError("too short")'),
        "ValueError: too short",
        'raise ValueError("too short")',
    ),
    "a precision that is fixed": (
        changed(RETURN_LOGITS, "return self.second(self.first(x.float()).relu())"),
        "The comparison trains the model in float64, too, as its reference, and there: ",
        "return self.second(self.first(x.float()).relu())",
    ),
}

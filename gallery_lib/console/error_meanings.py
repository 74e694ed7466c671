"""Meanings of common errors in a reader's model, loss or batches: a table of messages.

Each entry is a pattern in a library's message, and one line that says what is wrong and what to do.
"""

from __future__ import annotations

_FLOAT_LIKE, _INTEGER_LIKE = (
    "(?:Float|float|Half|BFloat16|Double|double)",
    "(?:Long|Int|Byte|Char|Short|Bool|long int|unsigned char|int)",
)
_CONVERT = "Convert in make_batch: inputs with `.float()`, class numbers and tokens with `.long()`."

NO_GRADIENT = (
    "the loss does not depend on the model's parameters. Leave out `.detach()`, `.item()`, "
    "`no_grad` and `argmax` on the way to it."
)

MEANINGS: list[tuple[str, str]] = [
    # Names and calls
    (
        r"name 'get_ipython' is not defined",
        "a line for IPython (`%` or `!`) stands between the functions, which are run as a Python "
        "file. Move it to a cell of its own.",
    ),
    (
        r"name '(\w+)' is not defined",
        r"`\1` is not known here: the training processes run this code as a file of its own. "
        r"Import or define `\1` in it.",
    ),
    (
        r"No module named '([\w.]+)'",
        r"the module `\1` is not found. "
        r"Install it in this environment, or put it beside the notebook.",
    ),
    (
        r"(\w[\w.]*)\(\) missing (\d+) required (?:positional|keyword-only) arguments?: (.+)",
        r"the call of `\1` lacks \3. Give it.",
    ),
    (
        r"(\w[\w.]*)\(\) takes (.+) but (\d+) (?:was|were) given",
        r"`\1` takes \2, and is called with \3 (`self` counts as one).",
    ),
    (
        r"(\w[\w.]*)\(\) got an unexpected keyword argument '(\w+)'",
        r"`\1` has no argument `\2`. Leave it out, or correct its name.",
    ),
    # What is handed on
    (
        r"'(?:list|tuple)' object has no attribute '(\w+)'",
        r"a tuple or list is used like a tensor (`.\1`). "
        r"Take the element that you mean: `[0]`, say.",
    ),
    (
        r"'NoneType' object has no attribute '(\w+)'",
        r"a function returned nothing (None), and `.\1` is asked of that. Is a `return` missing?",
    ),
    (
        r"'(?:float|int)' object has no attribute '(?:backward|detach)'",
        "the loss is a plain number. Return the tensor, without `.item()`.",
    ),
    (
        r"'(\w+)' object has no attribute "
        r"'(flatten|shape|size|view|reshape|float|argmax|mean|sum|squeeze|dim|backward|detach)'",
        r"an object, \1, is used like a tensor (`.\2`). "
        r"Take its tensor: `.logits` or `.loss`, say.",
    ),
    (
        r"must be Tensor, not (?:tuple|list)",
        "a tuple or list stands where a tensor belongs. "
        "Take the element that you mean: `[0]`, say.",
    ),
    (
        r"must be Tensor, not NoneType",
        "nothing (None) stands where a tensor belongs. Is a `return` missing?",
    ),
    (
        r"must be Tensor, not (?:numpy\.)?ndarray",
        "a NumPy array stands where a tensor belongs: `torch.from_numpy(array)` makes it one.",
    ),
    (
        r"must be Tensor, not (?:float|int)",
        "a plain number stands where a tensor belongs. "
        "Leave `.item()` out, or use `torch.tensor(…)`.",
    ),
    (
        r"must be Tensor, not (\w+)",
        r"an object, \1, stands where a tensor belongs. "
        r"Take its tensor: `.logits` or `.loss`, say.",
    ),
    # Devices
    (
        r"not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
        r"|No HIP GPUs",
        'there is no GPU here. Leave `.cuda()` and `device="cuda"` out: model and batches are '
        "moved to where the training runs.",
    ),
    (
        r"Expected all tensors to be on the same device|should be the same device"
        r"|is on (?:cpu|cuda)[^.]* but expected",
        "tensors lie on different devices. "
        "Make new ones with `device=x.device`, and fixed ones with `register_buffer`.",
    ),
    (
        r"device-side assert",
        "an index is out of its range (a class number or a token, say). "
        "The kernel has to be restarted after this.",
    ),
    (
        r"out of memory|can't allocate memory|not enough memory",
        "the step does not fit into memory. Use a smaller batch, or a smaller model.",
    ),
    # Shapes
    (
        r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)",
        r"a linear layer takes \2 values and is given \1. "
        r"Change its size, or the shape of what it is given.",
    ),
    (
        r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+)",
        r"a convolution takes \2 channels and is given \3: its input has the shape [\1], with "
        r"channels in the second place.",
    ),
    (
        r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)",
        r"the loss is given predictions for \1 samples and targets for \2. "
        r"Flatten both in the same way.",
    ),
    (
        r"[Tt]he size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        r"two tensors do not fit together: \1 values in a dimension where the other has \2.",
    ),
    (
        r"shape '\[([^]]*)\]' is invalid for input of size (\d+)",
        r"a tensor of \2 values cannot be given the shape [\1].",
    ),
    (
        r"[Tt]arget (-?\d+) is out of bounds",
        r"a target is class \1, and the model has no output of that number. Classes count from 0; "
        r"give the model as many outputs.",
    ),
    (
        r"index out of range in self",
        "an embedding has no row for one of the indices. "
        "Give it as many rows as there are tokens; they count from 0.",
    ),
    # Dtypes
    (
        rf"must have the same dtype, but got {_INTEGER_LIKE} and {_FLOAT_LIKE}"
        rf"|expected scalar type {_FLOAT_LIKE} but found {_INTEGER_LIKE}"
        rf"|(?:Input type|input type) \((?:torch\.)?(?:cuda\.)?{_INTEGER_LIKE}",
        f"whole numbers are given where a layer computes with floating point. {_CONVERT}",
    ),
    (
        rf"expected scalar type {_INTEGER_LIKE} but found {_FLOAT_LIKE}"
        "|scalar types: Long, Int; but got"
        "|[Ee]xpected target dtype to be Long",
        f"floating point is given where whole numbers belong (class numbers, tokens). {_CONVERT}",
    ),
    (
        r"not implemented for '(?:Long|Int|Byte|Char|Short|Bool)'|could not infer output dtype"
        r"|can't be cast to the desired output type (?:Long|Int)",
        f"whole numbers are given where floating point is needed. {_CONVERT}",
    ),
    (
        r"must have the same dtype, but got (\S+) and (\S+)|[Ff]ound dtype (\S+) but expected (\S+)"
        r"|expected scalar type (\S+) but found (\S+)"
        r"|(?:Input|input) type \((\S+)\) and (?:weight|bias) type",
        "numbers of two precisions meet. "
        "Make new tensors with `dtype=x.dtype`, and convert none to a fixed precision.",
    ),
    # The backward pass
    (r"does not require grad and does not have a grad_fn", NO_GRADIENT),
    (
        r"grad can be implicitly created only for scalar outputs",
        "the loss is several numbers; it must be one. Return its `.mean()`.",
    ),
    (
        r"modified by an inplace operation",
        "a tensor that the backward pass needs was changed in place (`x += …`, `x[…] = …`, "
        "`relu_()`). Write `x = x + …`.",
    ),
    (
        r"backward through the graph a second time",
        "a tensor of an earlier step is used again in this one. "
        "Detach what the model keeps from step to step.",
    ),
    (
        r"optimizer got an empty parameter list",
        "the model has no parameters to train. Make its layers attributes of an `nn.Module`.",
    ),
]
"""Pattern in an error's message → what is wrong, and what to do. The first match counts."""

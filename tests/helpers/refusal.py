"""Expectation that input is refused: the type of the error, what it is about, and the values in it.

with refused("batch_size", 300, 256):
    train(TrainConfig(batch_size=300))
check_refused_command(done.returncode, done.stderr, "batch_size", 300)
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gallery_lib.errors import InputError


@contextlib.contextmanager
def refused(
    parameter: str | Path | None, *values: object, error: type[InputError] = InputError
) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Context: the block raises InputError about `parameter`, and its message has the `values`.

    Args:
        parameter: the option, argument, file or field that the error names.
        values: what a reader has to see to find the mistake, such as the given value, a path, a
            number, or the suggestion; a compiled pattern where the number is not known.
        error: the class of the error.
    """
    with pytest.raises(error) as raised:
        yield raised
    check_refusal(raised.value, parameter, *values)


def check_refusal(error: BaseException, parameter: str | Path | None, *values: object) -> None:
    """Assert that `error` is an InputError about `parameter` whose message has the `values`."""
    assert isinstance(error, InputError)
    assert error.parameter == (None if parameter is None else str(parameter)), str(error)
    _check_values(str(error), values)


def check_refused_command(code: int, stderr: str, *values: object) -> None:
    """Assert that a command has refused its input: exit code 2, and a message with the `values`.

    Args:
        code: the exit code.
        stderr: what the command wrote to its standard error.
        values: name of the option, the given value, the suggestion, and the like.
    """
    assert code == InputError.exit_code, stderr
    assert "Traceback" not in stderr, stderr
    _check_values(stderr, values)


def _check_values(message: str, values: Iterable[object]) -> None:
    patterns = [
        value if isinstance(value, re.Pattern) else re.compile(re.escape(str(value)))
        for value in values
    ]
    missing = [pattern.pattern for pattern in patterns if not pattern.search(message)]
    assert not missing, f"{missing} not in: {message}"

"""Errors of the package: what they carry, also between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from gallery_lib.cluster.network import LabUnavailable
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.kernels.runtime.cpp import UNALIGNED, Refused

ERRORS = [
    (InputError("batch_size=0 must be at least 1.", parameter="batch_size"), "batch_size"),
    (InputError("give one."), None),
    (LabUnavailable("a lab needs `ip`.", parameter="ip"), "ip"),
    (Refused("adam's step does not take weights.", UNALIGNED, parameter="weights"), "weights"),
]


def contents(error: BaseException) -> tuple[type, str, dict[str, object]]:
    return type(error), str(error), vars(error)


@pytest.mark.parametrize(("error", "parameter"), ERRORS, ids=repr)
def test_an_error_is_the_same_after_pickling_and_copying(error, parameter):
    assert error.parameter == parameter
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert contents(same) == contents(error)


def test_the_closest_name_is_suggested_and_none_where_nothing_is_close():
    assert did_you_mean("resnet5", ["resnet50", "alexnet"]) == " Did you mean `resnet50`?"
    assert did_you_mean("x", ["resnet50"]) == ""

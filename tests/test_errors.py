"""Errors of the package: what they carry, also between processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import pytest

from gallery_lib.cluster.network import LabUnavailable
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.kernels.runtime.cpp import UNALIGNED, Refused

ERRORS = [
    InputError("batch_size=0 must be at least 1.", parameter="batch_size"),
    InputError("give one."),
    LabUnavailable("a lab needs `ip`.", parameter="ip"),
    Refused("adam's step does not take weights.", UNALIGNED, parameter="weights"),
]


def contents(error: BaseException) -> tuple[type, str, dict[str, object]]:
    return type(error), str(error), vars(error)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_is_the_same_after_pickling_and_copying(error):
    assert contents(pickle.loads(pickle.dumps(error))) == contents(error)
    assert contents(copy.copy(error)) == contents(copy.deepcopy(error)) == contents(error)


def _refuse(parameter: str) -> None:
    raise InputError("no.", parameter=parameter)


def test_an_error_of_another_process_keeps_its_parameter():
    pool = multiprocessing.get_context("spawn").Pool(1)
    with pool, pytest.raises(InputError) as raised:
        pool.apply(_refuse, ("data_dir",))
    assert raised.value.parameter == "data_dir"


def test_an_error_about_no_single_parameter_has_none():
    assert InputError("these do not go together.").parameter is None


def test_the_closest_name_is_suggested_and_none_where_nothing_is_close():
    assert did_you_mean("resnet5", ["resnet50", "alexnet"]) == " Did you mean `resnet50`?"
    assert did_you_mean("x", ["resnet50"]) == ""

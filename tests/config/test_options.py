"""Options are declared once and checked everywhere alike; switches come from a run's options."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import papermill
import pytest
from refusal import refused

import gallery_lib.config
from gallery_lib import memory
from gallery_lib.config import BenchConfig, Config, LaunchConfig, NotebookConfig, TrainConfig
from gallery_lib.config.options import CommandLine, checked, from_mapping, options_of, words_of
from gallery_lib.config.switches import compiler_enabled, kernels_enabled
from gallery_lib.launcher.job import environment_of

LINE = CommandLine("test", "", (TrainConfig, LaunchConfig))


def test_the_seed_commands_parse_verbatim() -> None:
    words = ("--nproc_per_node=8", "--amp_level=O1", "--compiler-opt", "--batch_size=128")
    expected = TrainConfig(amp_level="O1", compiler_opt=True, batch_size=128)
    assert LINE.parse(words) == [expected, LaunchConfig(nproc_per_node=8)]
    dashes, underscores = ["--batch-size", "4", "--no-kernels"], ["--batch_size=4", "--no_kernels"]
    assert LINE.parse(dashes) == LINE.parse(underscores)


@pytest.mark.parametrize(
    ("words", "parameter", "values"),
    [
        (("--batch_size", "0"), "batch_size", ("'0'", "whole number between 1 and 1000000000")),
        (("--batch_size", "abc"), "batch_size", ("'abc'", "whole number")),
        (("--batch_size", "2.5"), "batch_size", ("'2.5'", "whole number")),
        (("--batch_size", "１２"), "batch_size", ("'１２'", "whole number")),
        (("--batch_size", "1_000"), "batch_size", ("'1_000'", "whole number")),
        (("--batch_size", "8\n"), "batch_size", (r"'8\n'", "whole number")),
        (("--rank_timeout", "１0"), "rank_timeout", ("'１0'", "number")),
        (("--batch_size", "1" * 5000), "batch_size", ("1111… (5,0",)),
        (("--lr", "1e-400"), "lr", ("'1e-400'", "a number")),
        (("--lr", "nan"), "lr", ("'nan'", "number between 0 and")),
        (("--amp_level=O2",), "amp_level", ("'O2'", "O0 or O1")),
        (("--run_dir", " "), "run_dir", ("' '", "text")),
        (("--run_dir", "a\0b"), "run_dir", ("text",)),
        (("--batch_sise", "4"), None, ("`--batch-sise`", "`--batch-size`", "test --help")),
        (("--no-kernel",), None, ("`--no-kernel`", "`--no-kernels`")),
        (("--master_port", "70000"), "master_port", ("'70000'", "between 1 and 65535")),
        (("stray",), None, ("`stray`",)),
        (("--batch-size",), None, ("--batch-size", "one argument")),
    ],
)
def test_a_wrong_value_names_the_option_the_value_and_what_is_allowed(
    words: tuple[str, ...], parameter: str | None, values: tuple[object, ...]
) -> None:
    with refused(parameter, *values) as raised:
        LINE.parse(words)
    assert len(str(raised.value)) < 500


def test_operands_stand_anywhere_and_a_missing_one_is_named() -> None:
    line = CommandLine("test", "", (TrainConfig,), {"names": {"nargs": "*"}}, without=("seed",))
    words = ["one", "--batch_size=4", "two"]
    config, operands = line.parse(words)
    assert (config.batch_size, operands.names) == (4, ["one", "two"])
    for wrong in ("--batch_sise=4", "--seed=1"):
        with refused(None, f"`{wrong.partition('=')[0].replace('_', '-')}`"):
            line.parse([*words, wrong])
    with refused(None, "PICTURE.png"):
        CommandLine("test", "", operands={"picture": {"metavar": "PICTURE.png"}}).parse([])


def test_an_unknown_name_and_values_set_in_python_are_checked_too() -> None:
    with refused("batch_sise", "`batch_sise`", "`batch_size`"):
        from_mapping(NotebookConfig, {"batch_sise": 8})
    for config, values in (
        (TrainConfig(batch_size=0), ["batch_size=0"]),
        (TrainConfig(evaluate=1), ["evaluate=1", "true or false"]),  # type: ignore[arg-type]
        (TrainConfig(seed=True), ["seed=True", "whole number"]),
    ):
        with refused(values[0].partition("=")[0], *values):
            checked(config)


def test_a_command_line_gives_back_the_configuration_it_was_made_from() -> None:
    config = TrainConfig(compiler_opt=True, kernels=False, lr=0.5, data_dir="a b", evaluate=False)
    assert CommandLine("test", "", (TrainConfig,)).parse(words_of(config)) == [config]


def test_the_parameters_cell_holds_the_defaults_and_papermill_reads_its_types_and_help(
    checkout: Path,
) -> None:
    path = checkout / "notebooks" / "parameters_cell.py"
    spec = importlib.util.spec_from_file_location("parameters_cell", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    namespace: dict = {}
    exec(module.parameters_source(NotebookConfig), namespace)
    given = {f.name: namespace[f.name] for f in dataclasses.fields(NotebookConfig)}
    assert from_mapping(NotebookConfig, given) == NotebookConfig()
    found = papermill.inspect_notebook(str(checkout / "notebooks" / "resnet50.ipynb"))
    assert set(found) == set(given)
    assert found["batch_size"]["inferred_type_name"] == "int"
    assert all(parameter["help"] for parameter in found.values())


def test_help_has_every_option_with_its_meaning_and_default() -> None:
    for cls in (TrainConfig, LaunchConfig, BenchConfig):
        text = " ".join(CommandLine("test", "", (cls,)).parser().format_help().split())
        for name, declared in options_of(cls).items():
            assert f"--{name.replace('_', '-')}" in text
            assert declared.help and declared.help[0].isascii()
    text = " ".join(LINE.parser().format_help().split())
    assert "(default: resnet50)" in text and "Samples per process and step." in text


def test_options_are_declared_with_the_standard_library_alone_and_imports_change_nothing(
    checkout: Path,
) -> None:
    code = f"""
import os, sys
sys.path.append({str(checkout)!r})
before = dict(os.environ)
import gallery_lib, gallery_lib.config.options, gallery_lib.system.paths, gallery_lib.errors
assert dict(os.environ) == before
"""
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], timeout=60).returncode == 0


def test_the_program_has_at_most_130_options_and_ten_of_gallery_try() -> None:
    exported = [one for one in vars(gallery_lib.config).values() if dataclasses.is_dataclass(one)]
    classes = {base for one in exported for base in one.__mro__}
    counts = {one: len(vars(one).get("__annotations__", {})) for one in classes}
    assert counts.pop(gallery_lib.config.TryConfig) <= 10
    assert 100 < sum(counts.values()) <= 130


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TrainConfig(), (False, False)),
        (TrainConfig(compiler_opt=True), (True, True)),
        (TrainConfig(compiler_opt=True, kernels=False), (True, False)),
    ],
)
def test_the_answers_come_from_the_configuration_of_the_run(
    config: TrainConfig, expected: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment_of(config, LaunchConfig()).items():
        monkeypatch.setenv(name, value)
    assert (compiler_enabled(), kernels_enabled()) == expected
    monkeypatch.setenv("GALLERY_COMPILER_OPT", "yes")
    with refused("GALLERY_COMPILER_OPT", "'yes' must be 0 or 1"):
        compiler_enabled()


def test_the_baseline_gets_no_allocator_settings_and_threads_are_always_explicit() -> None:
    baseline = environment_of(TrainConfig(), LaunchConfig())
    assert "GLIBC_TUNABLES" not in baseline
    assert int(baseline["OMP_NUM_THREADS"]) >= 1


def test_the_users_own_tunables_win_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := memory.reason_not_applied():
        pytest.skip(f"{reason}; runs on Linux with glibc 2.35 or newer")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=2")
    chosen = dict(
        pair.split("=") for pair in memory.allocator_variables()["GLIBC_TUNABLES"].split(":")
    )
    assert chosen["glibc.malloc.hugetlb"] == "0"
    assert chosen["glibc.malloc.arena_max"] == "2"
    assert int(chosen["glibc.malloc.mmap_threshold"]) > 2**30
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=2"


@pytest.mark.parametrize(
    ("use", "kind", "says"),
    [
        (lambda: Config(bf16=True), TypeError, "It is config.compute.bf16"),  # type: ignore[call-arg]
        (lambda: Config().bf16, AttributeError, "It is config.compute.bf16"),
        (lambda: setattr(Config(), "wire", "int8"), AttributeError, "It is config.comm.wire"),
        (lambda: Config(compile=True), TypeError, "Did you mean `compiler`"),  # type: ignore[call-arg]
    ],
)
def test_an_option_in_the_wrong_place_is_answered_with_the_one_that_is_meant(
    use: Callable[[], Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        use()
    assert "compute" in inspect.signature(Config).parameters
    assert copy.deepcopy(Config()) == Config() == pickle.loads(pickle.dumps(Config()))


@dataclasses.dataclass
class _Own(Config):
    names: list[str] = dataclasses.field(default_factory=list)
    of_class = 1


def test_a_config_may_be_subclassed_with_fields_and_attributes_of_its_own() -> None:
    config = _Own(tune=True, names=["a"])
    config.of_class = 2
    assert (config.tune, config.names, config.of_class) == (True, ["a"], 2)
    with pytest.raises(AttributeError, match="_Own has no option `nams`"):
        config.nams = []  # type: ignore[attr-defined]

"""Options are declared once and checked everywhere in the same way."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import papermill
import pytest
from refusal import refused

from gallery_lib.config import (
    BatchConfig,
    BenchConfig,
    CommunicationNotebookConfig,
    LaunchConfig,
    NotebookConfig,
    TrainConfig,
)
from gallery_lib.config.command_line import CommandLine, parse_command_line, words_of
from gallery_lib.config.options import (
    checked,
    from_mapping,
    options_of,
    options_table,
    parameters_source,
)

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
        (("--batch_size", "0"), "batch_size", ("'0'", "between 1 and 1048576 (samples)")),
        (("--batch_size", "abc"), "batch_size", ("'abc'", "whole number")),
        (("--batch_size", "2.5"), "batch_size", ("'2.5'", "whole number")),
        (("--batch_size", "１２"), "batch_size", ("'１２'", "whole number")),
        (("--batch_size", "1_000"), "batch_size", ("'1_000'", "whole number")),
        (("--batch_size", "8\n"), "batch_size", (r"'8\n'", "whole number")),
        (("--rank_timeout", "１0"), "rank_timeout", ("'１0'", "number")),
        (("--batch_size", "1" * 5000), "batch_size", ("1111… (5,0",)),
        (("--lr", "nan"), "lr", ("'nan'", "finite")),
        (("--lr", "1e-400"), "lr", ("'1e-400'", "would be 0")),
        (("--amp_level=O2",), "amp_level", ("O2", "O1")),
        (("--amp_level=O7",), "amp_level", ("'O7'", "O0 or O1")),
        (("--run_dir", " "), "run_dir", ("' '", "empty")),
        (("--run_dir", "a\0b"), "run_dir", ("null byte",)),
        (("--batch_sise", "4"), "batch_sise", ("`--batch_sise`", "`--batch_size`")),
        (("--batch-sise=4",), "batch_sise", ("`--batch-sise=4`", "`--batch-size`")),
        (("--no-kernel",), "no_kernel", ("`--no-kernel`", "`--no-kernels`")),
        (("batch_size", "4"), "batch_size", ("`batch_size`", "`--batch_size`")),
        (("--master_port", "70000"), "master_port", ("'70000'", "between 1 and 65535")),
        (("stray",), "stray", ("`stray`",)),
        (("--batch-size",), "batch_size", ("one argument",)),
        (("--max_steps", "10m"), "max_steps", ("'10m'", "number")),
    ],
)
def test_a_wrong_value_names_the_option_the_value_and_what_is_allowed(
    words: tuple[str, ...], parameter: str, values: tuple[object, ...]
) -> None:
    with refused(parameter, *values) as raised:
        LINE.parse(words)
    assert len(str(raised.value)) < 500


def test_operands_stand_anywhere_and_a_missing_one_or_a_wrong_action_is_named() -> None:
    line = CommandLine("test", "", (TrainConfig,), {"names": {"nargs": "*"}})
    words = ["one", "--batch_size=4", "two"]
    config, operands = line.parse(words)
    assert (config.batch_size, operands.names) == (4, ["one", "two"])
    with refused("batch_sise", "`--batch_size`"):
        line.parse([*words, "--batch_sise=4"])
    with refused("picture", "PICTURE.png"):
        CommandLine("test", "", operands={"picture": {"metavar": "PICTURE.png"}}).parse([])
    with refused("action", "'upp'", "up"):
        CommandLine("test", "", actions={"up": CommandLine("test up", "")}).parse(["upp"])


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        *[("600", 600), ("90s", 90), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), ("1d", 86400)],
        *[(30, 30), ("", None), ("10 apples", None), ("m", None), ("1m2h", None), ("-5m", None)],
    ],
)
def test_an_option_in_seconds_takes_a_duration(written: str | int, seconds: float | None) -> None:
    if seconds is not None:
        assert from_mapping(BatchConfig, {"deadline": written}).deadline == seconds
        return
    with refused("deadline", repr(written), "90s, 10m, 2h, 1h30m"):
        from_mapping(BatchConfig, {"deadline": written})


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
    words = words_of(config)
    assert parse_command_line(words, TrainConfig, prog="test", description="")[0] == config


def test_the_parameters_cell_holds_the_defaults_and_papermill_reads_its_types_and_help(
    checkout: Path,
) -> None:
    namespace: dict = {}
    exec(parameters_source(NotebookConfig), namespace)
    given = {f.name: namespace[f.name] for f in dataclasses.fields(NotebookConfig)}
    assert from_mapping(NotebookConfig, given) == NotebookConfig()
    found = papermill.inspect_notebook(str(checkout / "notebooks" / "resnet50.ipynb"))
    assert set(found) == set(given)
    assert found["batch_size"]["inferred_type_name"] == "int"
    assert all(parameter["help"] for parameter in found.values())


def test_tables_and_help_have_every_option_with_its_meaning_default_and_unit() -> None:
    for cls in (TrainConfig, LaunchConfig, BenchConfig, CommunicationNotebookConfig):
        text = " ".join(CommandLine("test", "", (cls,)).parser().format_help().split())
        for name, declared in options_of(cls).items():
            assert f"| `{name}` |" in options_table(cls) and f"--{name}" in text
            assert declared.help and declared.help[0].isascii()
    text = " ".join(LINE.parser().format_help().split())
    assert "[samples]" in text and "(default: resnet50)" in text
    assert "| seconds, or such as 90s, 10m, 2h, 1h30m |" in options_table(BatchConfig)
    assert options_of(BenchConfig)["seed"].help == options_of(TrainConfig)["seed"].help

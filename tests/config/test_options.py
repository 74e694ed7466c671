"""Options are declared once and checked everywhere in the same way."""

import argparse
import dataclasses
from pathlib import Path

import papermill
import pytest
from refusal import refused

from gallery_lib.config import BatchConfig, LaunchConfig, NotebookConfig, TrainConfig
from gallery_lib.config.command_line import CommandLine, parse_command_line, words_of
from gallery_lib.config.options import checked, from_mapping, options_table, parameters_source


def parse(*words: str) -> list:
    return parse_command_line(words, TrainConfig, LaunchConfig, prog="test", description="")


def test_the_seed_commands_parse_verbatim() -> None:
    words = ("--nproc_per_node=8", "--amp_level=O1", "--compiler-opt", "--batch_size=128")
    expected = TrainConfig(amp_level="O1", compiler_opt=True, batch_size=128)
    assert parse(*words) == [expected, LaunchConfig(nproc_per_node=8)]


def test_dashes_and_underscores_are_the_same() -> None:
    assert parse("--batch-size", "4", "--no-kernels") == parse("--batch_size=4", "--no_kernels")


@pytest.mark.parametrize(
    ("words", "parameter", "values"),
    [
        (("--batch_size", "0"), "batch_size", ("'0'", "at least 1")),
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
        (("--batch_sise", "4"), "batch_sise", ("`--batch_sise`", "`--batch_size`")),
        (("--batch-sise=4",), "batch_sise", ("`--batch-sise=4`", "`--batch-size`")),
        (("--no-kernel",), "no_kernel", ("`--no-kernel`", "`--no-kernels`")),
        (("batch_size", "4"), "batch_size", ("`batch_size`", "`--batch_size`")),
        (("--master_port", "70000"), "master_port", ("'70000'", "at most 65535")),
        (("stray",), "stray", ("`stray`",)),
        (("--batch-size",), "batch_size", ("one argument",)),
    ],
)
def test_a_wrong_value_names_the_option_the_value_and_what_is_allowed(
    words: tuple[str, ...], parameter: str, values: tuple[object, ...]
) -> None:
    with refused(parameter, *values) as raised:
        parse(*words)
    assert len(str(raised.value)) < 500


def test_a_missing_operand_is_named() -> None:
    def operands(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("picture", metavar="PICTURE.png")

    with refused("picture", "PICTURE.png"):
        CommandLine("test", "", operands=operands).parse([])


def test_a_word_that_is_no_action_is_named() -> None:
    line = CommandLine("test", "", actions={"up": CommandLine("test up", "")})
    with refused("action", "'upp'", "up"):
        line.parse(["upp"])


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("600", 600),
        ("90s", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("1d", 86400),
        (30, 30),
    ],
)
def test_an_option_in_seconds_takes_a_duration(written: str | int, seconds: float) -> None:
    assert from_mapping(BatchConfig, {"deadline": written}).deadline == seconds


@pytest.mark.parametrize("written", ["", "10 apples", "m", "1m2h", "-5m", "10m 5", "h"])
def test_what_is_no_duration_is_refused_with_the_forms_that_are(written: str) -> None:
    with refused("deadline", repr(written), "90s, 10m, 2h, 1h30m"):
        from_mapping(BatchConfig, {"deadline": written})


def test_other_numbers_take_no_duration() -> None:
    with refused("max_steps", "'10m'", "number"):
        from_mapping(TrainConfig, {"max_steps": "10m"})


def test_every_table_and_help_of_an_option_in_seconds_shows_the_forms() -> None:
    assert "| seconds, or such as 90s, 10m, 2h, 1h30m |" in options_table(BatchConfig)
    assert "90s, 10m, 2h, 1h30m]" in CommandLine(
        "test", "", (BatchConfig,)
    ).parser().format_help().replace("\n", " ").replace("  ", "")


def test_an_unknown_notebook_parameter_gets_a_suggestion() -> None:
    with refused("batch_sise", "`batch_sise`", "`batch_size`"):
        from_mapping(NotebookConfig, {"batch_sise": 8})


def test_values_set_in_python_are_checked_too() -> None:
    with refused("batch_size", "batch_size=0"):
        checked(TrainConfig(batch_size=0))


def test_a_command_line_gives_back_the_configuration_it_was_made_from() -> None:
    config = TrainConfig(compiler_opt=True, kernels=False, lr=0.5, data_dir="a b", evaluate=False)
    assert (
        parse_command_line(words_of(config), TrainConfig, prog="test", description="")[0] == config
    )


def test_the_parameters_cell_is_python_that_holds_the_defaults() -> None:
    namespace: dict = {}
    exec(parameters_source(NotebookConfig), namespace)
    given = {f.name: namespace[f.name] for f in dataclasses.fields(NotebookConfig)}
    assert from_mapping(NotebookConfig, given) == NotebookConfig()


def test_papermill_reads_type_and_help_of_every_parameter(checkout: Path) -> None:
    found = papermill.inspect_notebook(str(checkout / "notebooks" / "resnet50.ipynb"))
    assert set(found) == {f.name for f in dataclasses.fields(NotebookConfig)}
    assert found["batch_size"]["inferred_type_name"] == "int"
    assert all(parameter["help"] for parameter in found.values())


def test_tables_and_help_have_every_option_with_its_meaning_default_and_unit() -> None:
    text = CommandLine("test", "", (TrainConfig, LaunchConfig)).parser().format_help()
    for cls in (TrainConfig, LaunchConfig):
        for f in dataclasses.fields(cls):
            assert f.metadata["help"] and f"| `{f.name}` |" in options_table(cls)
            assert f"--{f.name}" in text
    assert "[samples]" in text and "(default: resnet50)" in text


def test_operands_stand_anywhere_among_the_options_and_come_last() -> None:
    def operands(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("names", nargs="*")

    line, words = (
        CommandLine("test", "", (TrainConfig,), operands),
        ["one", "--batch_size=4", "two"],
    )
    config, namespace = line.parse(words)
    assert (config.batch_size, namespace.names) == (4, ["one", "two"])
    with refused("batch_sise", "`--batch_size`"):
        line.parse([*words, "--batch_sise=4"])

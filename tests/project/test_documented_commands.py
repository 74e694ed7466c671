"""Every command that a document shows works as it stands, in a fresh clone and a plain shell.

The clone has what `prepare.sh` makes. Words such as FOLDER stand for what a reader has; WORDS says
what they are here. A command that takes long, or needs what a test may not have, is in INSTEAD with
the reason and the check that is made in its place. All others have to end with exit code 0.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path

import pytest
from project.documented_commands import Command, commands_in, documented
from project.fresh_clone import Clone, add_prepared, fresh_clone
from project.instead import (
    FEW_STEPS,
    INSTEAD,
    TINY,
    instead_of,
    sets_up,
    succeeds,
    with_options,
)

from gallery_lib.notebooks.pack import README, pack

CHECKOUT = Path(__file__).resolve().parents[2]
PACKED = "alexnet"
COMMANDS = documented(CHECKOUT)
PACKED_COMMANDS = list(
    commands_in(README.format(title="AlexNet", name=PACKED), "the packed README")
)
ONE = "runs/one"
WORDS = {
    r"check_imagenet": {"FOLDER": ".cache/data/imagenet-small"},
    r"check_segmentation": {"FOLDER": ".cache/data/segmentation-small"},
    r"check_features.*speech": {"FOLDER": ".cache/data/speech-small"},
    r"check_features.*tts": {"FOLDER": ".cache/data/speakers-small"},
    r"launch_single_task": {
        **{"FOLDER": ".cache/data/imagenet-small", "FILE": f"{ONE}/weights.pt", "RUN": ONE}
    },
    r"gallery (show|doctor)": {
        **{"FOLDER": ONE, "RUN": ONE, "RUN_ON_ONE": ONE, "RUN_ON_SEVERAL": "runs/two"}
    },
    r"gallery compare": {
        **dict.fromkeys(("BEFORE", "AFTER"), "tests/notebooks/batch/sets/before.json"),
        "path/to/file.py:TASK": TINY,
    },
    r".*": {"${name}": "resnet50", "mobilenet_v3": "resnet50"},
}
"""What stands for a reader's own words, by the commands in which they are written.

A key is the beginning of a pattern's match.
"""


def with_words(text: str) -> str:
    """Return the command with what stands here for a reader's own files."""
    for pattern, words in WORDS.items():
        if re.search(pattern, text):
            for word, value in words.items():
                text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", value, text)
    return text


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Return a clone with what the documents' commands find.

    It has mock data, a run on one process, and one that says it was on two.
    """
    made = fresh_clone(CHECKOUT, tmp_path_factory.mktemp("documented"))
    add_prepared(made.root)
    for script in ("mock_imagenet", "mock_segmentation", "mock_speech", "mock_speakers"):
        succeeds(made, f"python3 data_prep/{script}.py")
    succeeds(
        made,
        f"mkdir runs && python3 launch_single_task.py --model {TINY} --max_steps 8 --workers 0 "
        "--save-weights --run_dir runs/one",
    )
    shutil.copytree(made.root / "runs" / "one", made.root / "runs" / "two")
    results = made.root / "runs" / "two" / "results.json"
    # A machine may have only one core.
    results.write_text(results.read_text().replace('"world_size": 1', '"world_size": 2'))
    return made


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Return a task's archive, unpacked on a machine where prepare.sh has been run in it."""
    folder = tmp_path_factory.mktemp("packed")
    with tarfile.open(pack(PACKED, folder / "out.tar.gz")) as archive:
        archive.extractall(
            folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    unpacked = Clone(folder / f"gallery-{PACKED}", folder / "home")
    unpacked.home.mkdir()
    add_prepared(unpacked.root)
    return unpacked


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_documented_command_works_as_it_stands(command: Command, clone: Clone) -> None:
    entry, text = instead_of(command), with_words(command.text)
    if entry:
        entry.check(clone, text)
    else:
        succeeds(clone, text)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("command", PACKED_COMMANDS, ids=str)
def test_a_command_of_a_packed_task_works_as_it_stands(command: Command, packed: Clone) -> None:
    if command.text.startswith("bash prepare.sh"):
        sets_up(packed, command.text)
    else:
        with_options(FEW_STEPS)(packed, command.text)


def test_checks_that_are_made_instead_and_words_still_have_their_command() -> None:
    assert len(COMMANDS) > 60 and len(PACKED_COMMANDS) >= 3
    unused = [one.pattern for one in INSTEAD if one not in map(instead_of, COMMANDS)]
    assert not unused, "no document shows such a command any more: remove the entry"
    for pattern, words in WORDS.items():
        texts = [command.text for command in COMMANDS if re.search(pattern, command.text)]
        for word in words:
            assert any(word in text for text in texts), f"no command has {word} any more: remove it"

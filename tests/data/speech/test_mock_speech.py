"""Mock speech: its sounds and words, its files, and the command that makes it."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from data.speech.small_speech import TINY, files_of
from data_command import run_data_command
from refusal import check_refused_command, refused

from gallery_lib.data.speech import mock_speech
from gallery_lib.data.speech.characters import tidy
from gallery_lib.data.speech.mock_speech import SpeechSpec, generate, language, utterance
from gallery_lib.data.speech.utterances import stacked_length

# Mock speech


def test_an_utterance_depends_on_seed_split_and_index_alone() -> None:
    more = SpeechSpec(characters=12, words=10, train=99, val=50)
    a, b = (utterance(spec, language(spec), "train", 7) for spec in (TINY, more))
    assert np.array_equal(a[0], b[0]) and a[1:] == b[1:]
    others = [
        utterance(TINY, language(TINY), "val", 7),
        utterance(TINY, language(TINY), "train", 8),
        utterance(
            SpeechSpec(characters=12, words=10, train=24, val=8, seed=1), language(TINY), "train", 7
        ),
    ]
    assert all(not np.array_equal(a[0], other[0]) for other in others)


def test_lengths_are_those_of_short_sentences() -> None:
    spoken = language(SpeechSpec())
    made = [utterance(SpeechSpec(), spoken, "train", index) for index in range(60)]
    stacked = [stacked_length(len(features)) for features, _, _ in made]
    assert 145 < np.mean(stacked) < 175 and np.std(stacked) > 20
    assert 13 < np.mean([len(text) for _, text, _ in made]) < 17
    assert {features.dtype for features, _, _ in made} == {np.dtype(np.float16)}


def test_words_can_be_told_from_their_sound() -> None:
    spec = SpeechSpec(characters=12, words=10)
    spoken = language(spec)

    def words(split: str) -> list[tuple[str, np.ndarray]]:
        found = []
        for index in range(30):
            features, text, cuts = utterance(spec, spoken, split, index)
            places = [(0, 0), *cuts, (len(text), len(features))]
            for (c, f), (d, g) in pairwise(places):
                parts = np.array_split(features[f:g].astype(np.float32), 4)
                found.append((text[c:d], np.concatenate([part.mean(0) for part in parts])))
        return found

    training = words("train")
    names = sorted({name for name, _ in training})
    means = np.stack(
        [np.mean([sound for name, sound in training if name == which], axis=0) for which in names]
    )
    tested = words("val")
    right = sum(
        names[int(((means - sound) ** 2).sum(1).argmin())] == name for name, sound in tested
    )
    assert right / len(tested) > 0.9


def test_a_large_language_has_as_many_characters_as_asked() -> None:
    letters = language(SpeechSpec(characters=4230, words=10)).letters
    assert len(set(letters)) == 4230 and all(tidy(letter) == letter for letter in letters)


def test_the_same_spec_makes_the_same_bytes_and_a_second_call_makes_nothing(
    root: Path, tmp_path: Path
) -> None:
    assert generate(tmp_path / "again", TINY).now
    before = files_of(tmp_path / "again")
    assert before == files_of(root)
    second = generate(tmp_path / "again", TINY)
    assert not second.now and second.seconds < 0.5
    assert files_of(tmp_path / "again") == before


def test_another_spec_or_other_content_is_refused_untouched(root: Path, tmp_path: Path) -> None:
    before = files_of(root)
    with refused("out", root, "'seed': 1"):
        generate(root, SpeechSpec(characters=12, words=10, train=24, val=8, seed=1))
    assert files_of(root) == before
    (tmp_path / "thesis.txt").write_text("years of work")
    with refused("out", "not empty"):
        generate(tmp_path, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_interrupted_generation_leaves_nothing_and_leftovers_of_a_killed_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mock_speech, "write_alignment", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path / "speech", TINY)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".speech.partial" / "train").mkdir(parents=True)
    (tmp_path / ".speech.partial" / "train" / "extra.npy").write_bytes(b"x")
    generate(tmp_path / "speech", TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["speech"] and not list(
        tmp_path.rglob("extra.npy")
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("characters", 1),
        ("characters", 4231),
        ("words", 0),
        ("train", 0),
        ("val", -1),
        ("seed", -1),
    ],
)
def test_an_impossible_spec_names_the_field_and_the_value(field: str, value: int) -> None:
    with refused(field, value):
        SpeechSpec(**{field: value})


def test_the_command_makes_reports_and_refuses_with_its_exit_codes(tmp_path: Path) -> None:
    run = partial(run_data_command, "mock_speech", cache=tmp_path / "cache", folder=tmp_path)

    sizes = ["--characters", "12", "--words", "10", "--train", "4", "--val", "2"]
    made = run(*sizes)
    folder = tmp_path / "cache" / "data" / "speech-small"
    assert made.returncode == 0 and "10 files, made now" in made.stdout
    assert json.loads((folder / "made.json").read_text())["made"]["spec"]["train"] == 4
    assert "complete already" in run(*sizes).stdout
    impossible = run("--characters", "1")
    check_refused_command(impossible.returncode, impossible.stderr, "characters is 1")
    other = run("--seed", "5")
    check_refused_command(other.returncode, other.stderr, folder, "'seed': 0", "'seed': 5")

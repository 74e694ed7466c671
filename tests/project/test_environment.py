"""pyproject.toml, environment.yml and requirements.lock describe the same environment.

environment.yml itself is only read here: creating it takes conda, which these tests do not run.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


@pytest.fixture(scope="module")
def project(checkout: Path) -> dict:
    return tomllib.loads((checkout / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def declared(project) -> list[Requirement]:
    """Return the dependencies, with those of every extra."""
    extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    return [Requirement(line) for line in project["dependencies"] + extras]


@pytest.fixture(scope="module")
def lock(checkout: Path) -> str:
    return (checkout / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def pins(lock: str) -> dict[str, list[str]]:
    """Return the text of each package's entries (one per marker), by name."""
    result: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=\S)", lock):
        if not entry.startswith("#"):
            result.setdefault(canonicalize_name(entry.partition("==")[0]), []).append(entry)
    return result


@pytest.fixture(scope="module")
def conda(checkout: Path) -> dict:
    return yaml.safe_load((checkout / "environment.yml").read_text())


def test_conda_takes_from_pypi_what_the_package_declares_and_the_package_itself(conda, project):
    from_pypi = next(entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    assert from_pypi == [*project["dependencies"], "-e ."]


def test_conda_brings_python_pip_and_a_compiler(conda, project):
    assert f"python{project['requires-python']}" in conda["dependencies"]
    assert {"pip", "cxx-compiler"} <= {
        entry for entry in conda["dependencies"] if isinstance(entry, str)
    }
    assert (conda["name"], conda["channels"]) == ("gallery", ["conda-forge"])


def test_every_declared_package_is_pinned_within_its_specifier(declared, pins):
    for requirement in declared:
        entries = pins.get(canonicalize_name(requirement.name))
        assert entries, f"{requirement.name} is not in requirements.lock: bash prepare.sh --lock"
        for entry in entries:
            version = re.match(r"[\w.-]+==(\S+)", entry)
            assert version, entry
            assert requirement.specifier.contains(Version(version[1])), (
                f"{requirement} is pinned at {version[1]}"
            )


def test_the_lock_holds_no_direct_dependency_that_is_no_longer_declared(declared, pins):
    direct = {
        name
        for name, entries in pins.items()
        if any("gallery-lib (pyproject.toml)" in entry for entry in entries)
    }
    assert direct == {canonicalize_name(requirement.name) for requirement in declared}


def test_every_pin_has_hashes(pins):
    unhashed = [
        entry for entries in pins.values() for entry in entries if "--hash=sha256:" not in entry
    ]
    assert not unhashed


def test_the_lock_names_no_address_and_no_folder(lock):
    assert not re.findall(r"\S*://\S*|(?<!\S)/\S+|.*--(?:index|extra-index|find-links)\S*", lock)

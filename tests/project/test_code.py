"""Style, types, notebooks, generated pages, the website, and the files that describe environments.

pyproject.toml, environment.yml and requirements.lock agree. environment.yml itself is only read
here: creating it takes conda, which these tests do not run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WRITTEN = ("--extend-exclude", "runs", "--extend-exclude", ".cache")
CHECKS = {
    "style": ("-m", "ruff", "check", "--quiet", *WRITTEN, "."),
    "form": ("-m", "ruff", "format", "--quiet", "--check", *WRITTEN, "."),
    "types": ("-m", "mypy", "--no-error-summary"),
    "notebooks": ("-m", "nbstripout", "--verify", "--keep-id"),
    "generated pages": ("docs/generated.py", "--check"),
    "notebooks from their sources": ("notebooks/build.py", "--check"),
}


def check(checkout: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, *words], cwd=checkout, capture_output=True, text=True, timeout=560
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "types" else n for n in CHECKS]
)
def test_the_code_passes(name: str, checkout: Path) -> None:
    files = map(str, checkout.glob("notebooks/*.ipynb")) if name == "notebooks" else ()
    check(checkout, *CHECKS[name], *files)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_website_is_built_without_a_warning_and_needs_no_network(
    checkout: Path, tmp_path: Path
) -> None:
    words = ("-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs")
    check(checkout, *words, "-d", f"{tmp_path}/doctrees", ".", f"{tmp_path}/site")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"resnet50.html", "help.html", "reference.html"} <= {page.name for page in pages}
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="https?:|<link [^>]*href="https?:')
    assert [page for page in pages if loaded.search(page.read_text())] == []


# --------------------------------------------------------------------------------------------------
# Environments


@pytest.fixture(scope="module")
def project(checkout: Path) -> dict:
    return tomllib.loads((checkout / "pyproject.toml").read_text())["project"]


def test_conda_takes_from_pypi_what_the_package_declares_and_brings_the_rest(
    project: dict, checkout: Path
) -> None:
    conda = yaml.safe_load((checkout / "environment.yml").read_text())
    from_pypi = next(entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    assert from_pypi == ["-e .[tasks,notebooks,cuda]"]
    assert {"tasks", "notebooks", "cuda"} < set(project["optional-dependencies"])
    others = {entry for entry in conda["dependencies"] if isinstance(entry, str)}
    assert {f"python{project['requires-python']}", "pip", "cxx-compiler"} <= others
    assert (conda["name"], conda["channels"]) == ("gallery", ["conda-forge"])


def test_the_lock_pins_what_is_declared_with_hashes_and_names_no_place(
    project: dict, checkout: Path
) -> None:
    lock = (checkout / "requirements.lock").read_text()
    assert not re.findall(r"\S*://\S*|(?<!\S)/\S+|.*--(?:index|extra-index|find-links)\S*", lock)
    entries = [one for one in re.split(r"\n(?=\S)", lock) if not one.startswith("#")]
    assert not [entry for entry in entries if "--hash=sha256:" not in entry]
    names = [canonicalize_name(entry.partition("==")[0]) for entry in entries]
    extras = project.get("optional-dependencies", {}).values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    declared = {canonicalize_name(one.name): one for one in map(Requirement, lines)}
    direct = set()
    for name, entry in zip(names, entries, strict=True):
        pinned = re.match(r"[\w.-]+==(\S+)", entry)
        assert pinned, entry
        if "gallery-lib (pyproject.toml)" in entry:
            direct.add(name)
            assert declared[name].specifier.contains(pinned[1]), f"{declared[name]}: {pinned[1]}"
    assert direct == set(declared), "write the lock anew, see CONTRIBUTING.md"

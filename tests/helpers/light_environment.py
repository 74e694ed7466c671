"""Links to the packages that a project requires, and to what those require in turn: no others."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def link_packages(folder: Path, pyproject: Path, *extras: str) -> set[str]:
    """Link what the project requires, with these extras, into the folder; return the names."""
    project = tomllib.loads(pyproject.read_text())["project"]
    open_ones, done = list(project["dependencies"]), set()
    for extra in extras:
        open_ones += project["optional-dependencies"][extra]
    while open_ones:
        requirement = Requirement(open_ones.pop())
        name = canonicalize_name(requirement.name)
        if name in done or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        done.add(name)
        distribution = importlib.metadata.distribution(name)
        open_ones += distribution.requires or []
        for file in distribution.files or ():
            top = Path(file.parts[0])
            source = Path(str(distribution.locate_file(top)))
            if ".." not in file.parts and not (folder / top).exists() and source.exists():
                (folder / top).symlink_to(source)
    return done

"""Command `gallery site`: build the gallery as pages for a browser."""

from __future__ import annotations

from collections.abc import Sequence

from gallery_lib.config import SiteConfig
from gallery_lib.config.command_line import CommandLine

LINE = CommandLine(
    "gallery site",
    "Build the gallery's pages, which need neither server nor network. "
    "Nothing is executed: see --run.",
    (SiteConfig,),
)


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words behind it."""
    (config,) = LINE.parse(arguments)
    from gallery_lib.notebooks.site.build import build

    print(build(config) / "index.html")

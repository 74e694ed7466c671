"""Notebooks of a few lines, written as files, for the tests of what runs notebooks."""

from __future__ import annotations

import json
from pathlib import Path


def write_notebook(folder: Path, name: str, *sources: str, parameters: str | None = None) -> Path:
    """Write a notebook for the kernel `gallery` with a code cell per source, and return its path.

    A parameters cell stands first where `parameters` is given.
    """
    cells = [] if parameters is None else [("parameters", parameters)]
    cells += [("", source) for source in sources]
    values = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "gallery", "display_name": "Gallery", "language": "python"}
        },
        "cells": [
            {
                "cell_type": "code",
                "id": f"cell-{number:02d}",
                "metadata": {"tags": [tag]} if tag else {},
                "source": source,
                "execution_count": None,
                "outputs": [],
            }
            for number, (tag, source) in enumerate(cells)
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ipynb"
    path.write_text(json.dumps(values))
    return path

"""Runner of `gallery run` on notebooks, which finds every process that stems from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.faults.driver import MARK, marked


@dataclass
class Runner:
    environment: dict[str, str]
    mark: str

    def start(self, out: Path, *words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gallery_lib.cli.main", "run", "--out", str(out), *words],
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **self.environment, MARK: self.mark},
            start_new_session=True,
        )

    def run(self, out: Path, *words: str) -> tuple[int, str]:
        """Run the batch, and return exit code and output."""
        process = self.start(out, *words)
        output, _ = process.communicate(timeout=200)
        return process.returncode, output

    def left(self) -> list[psutil.Process]:
        """Return those of its processes, and of theirs, that are still there."""
        return marked(self.mark)


def read(out: Path) -> dict[str, Any]:
    return json.loads((out / "report.json").read_text())

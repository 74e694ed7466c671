"""Client of a JupyterLab that a test starts: files over HTTP, as a browser asks for them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.system.processes import end_supervised


@dataclass(frozen=True)
class Server:
    """A Jupyter server at `url` (http://…/) that answers requests with the token."""

    url: str
    token: str

    def request(self, path: str, method: str = "GET", content: dict[str, Any] | None = None) -> Any:
        """Return the server's JSON answer, or the answer's address for a path outside of `api/`."""
        data = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer) if path.startswith("api/") else answer.geturl()

    def get(self, path: str) -> Any:
        """Return the answer to GET."""
        return self.request(path)

    def save(self, path: str, notebook: dict[str, Any]) -> None:
        """Save the notebook at `path`, as JupyterLab does."""
        self.request(
            f"api/contents/{path}",
            "PUT",
            {"type": "notebook", "format": "json", "content": notebook},
        )


@contextlib.contextmanager
def jupyter_server(command: Sequence[str], runtime: Path, **start: Any) -> Iterator[Server]:
    """Start a Jupyter server, and yield it once it answers.

    It writes its file into `runtime` before it listens.

    Args:
        command: the server's command, below a supervisor where the test asks for one.
        runtime: Jupyter's runtime folder.
        **start: further arguments of Popen.
    """
    process = subprocess.Popen(
        list(command),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **start,
    )
    try:
        deadline = time.monotonic() + 60
        while (server := answering(runtime)) is None:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.2)
        yield server
    finally:
        end_supervised(process)


def answering(runtime: Path) -> Server | None:
    """Return the server that has a file in `runtime`, or None while it does not answer."""
    for path in runtime.glob("jpserver-*.json"):
        content = path.read_text().rstrip()
        if content.endswith("}"):
            told = json.loads(content)
            server = Server(told["url"], told["token"])
            with contextlib.suppress(urllib.error.URLError):
                server.get("api/status")
                return server
    return None

"""Run papermill with live progress of the running cell; the arguments are those of papermill.

    python -m gallery_lib.notebooks.batch.live_notebook INPUT OUTPUT [options of papermill]

papermill logs an output when it appears. A progress line is one output that is updated in place.
papermill logs only its first state, and then nothing for as long as the cell trains.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from papermill.__main__ import papermill
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines
from papermill.log import logger

from gallery_lib.console.outlets import fit, outlet
from gallery_lib.notebooks.batch.evidence import without_escapes

ENGINE = "gallery"
LINE_SECONDS = 10.0


class _Client(PapermillNotebookClient):
    """Notebook client that shows each new state of an output and logs as papermill does.

    The outlet (console/outlets.py) decides where and how often a state is shown.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._outlet = outlet(LINE_SECONDS)
        self._last, self._drawn, self._drawn_at = "", "", 0.0

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Show what an update brings, and return what nbclient returns.

        nbclient returns the output, if the message is a new one.
        """
        kind, content = msg["msg_type"], msg["content"]
        if kind == "update_display_data":
            self._updated(without_escapes("".join(content["data"].get("text/plain", ""))))
        elif kind == "status" and content["execution_state"] == "idle":
            self._settled()
        return super().process_message(msg, cell, cell_index)

    def log_output_message(self, output: Any) -> None:
        """Log an output as papermill does, below the last drawn line."""
        self._settled()
        super().log_output_message(output)

    def _updated(self, text: str) -> None:
        label, old = text.partition(":")[0], self._last.partition(":")[0]
        self._last, now = text, time.monotonic()
        if self._outlet.due(now - self._drawn_at, new_phase=label != old, new_part=label != old):
            self._outlet.draw(fit(text, self._outlet.width()))
            self._drawn, self._drawn_at = text, now

    def _settled(self) -> None:
        """Leave the last state as a line, unless it is one already.

        A terminal draws over its last line, so the state would be lost there.
        """
        if self._last:
            is_a_line = self._outlet.width() is None and self._last == self._drawn
            self._outlet.end(None if is_a_line else self._last, "")
        self._last = self._drawn = ""


class _Engine(Engine):
    """papermill's own engine, with `_Client` as its client."""

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: Any,
        kernel_name: str,
        start_timeout: int = 60,
        execution_timeout: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Execute the notebook of papermill's `nb_man`; return it with its outputs."""
        kwargs.pop("input_path", None)
        limits = {"startup_timeout": start_timeout, "timeout": execution_timeout}
        return _Client(nb_man, kernel_name=kernel_name, log=logger, **limits, **kwargs).execute()


def _harmless(record: logging.LogRecord) -> bool:
    """Remove terminal control sequences from a log message; return True to keep the message.

    A notebook's output must not move the cursor or name the window of a terminal.
    """
    record.msg, record.args = without_escapes(record.getMessage()), ()
    return True


if __name__ == "__main__":
    logger.addFilter(_harmless)
    papermill_engines.register(ENGINE, _Engine)
    papermill([*sys.argv[1:], "--engine", ENGINE])

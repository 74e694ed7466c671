"""Process that ranks.py starts: it runs the functions it is sent, and sends back the results.

A function is named `subject.function`.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from ranks import connect

from gallery_lib.comm import process_group
from gallery_lib.system.processes import die_with_parent
from on_ranks import averages, case, early, loaders, replays, twins, ways

SUBJECTS = {
    module.__name__.rpartition(".")[2]: module
    for module in (averages, case, early, loaders, replays, twins, ways)
}


def main(arguments: list[str]) -> None:
    die_with_parent()
    address, key, on_each_host = arguments
    os.environ["GALLERY_CACHE_DIR"] = str(Path(address).parent / "cache")
    os.environ["GROUP_RANK"] = str(process_group.rank() // int(on_each_host))
    torch.set_num_threads(1)
    process_group.ensure_initialized(timeout_seconds=20)
    link = connect(address, key, process_group.rank())
    while True:
        try:
            function, values = link.recv()
        except EOFError:
            break
        try:
            subject, name = function.split(".")
            link.send(getattr(SUBJECTS[subject], name)(*values))
        except Exception as error:
            link.send(error)
    os._exit(0)

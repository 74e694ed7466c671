"""Cache of the tuner's choices: a JSON file for each model, hosts, candidates, device and torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from gallery_lib.comm import process_group
from gallery_lib.comm.rebuild import DDP
from gallery_lib.comm.topology import Topology
from gallery_lib.config import Comm
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import hardware, paths
from gallery_lib.system.json_files import Misfit, converted, read_json, set_aside, write_json


def choice_path(model: DDP, hosts: Topology, strategies: Mapping[str, Comm]) -> Path:
    """Return the file for the choice between `strategies`; other circumstances have another."""
    facts = [
        [
            (name, tuple(parameter.shape), str(parameter.dtype))
            for name, parameter in model.module.named_parameters()
        ],
        hosts.hosts,
        {name: dataclasses.asdict(strategy) for name, strategy in strategies.items()},
        torch.cuda.get_device_name() if model.device.type == "cuda" else hardware.processor(),
        torch.__version__,
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return paths.cache_dir() / "comm" / f"{digest}.json"


def read_choice(path: Path, names: Sequence[str]) -> str | None:
    """Return the choice that rank 0 has in its file, or None. A collective call.

    A file that cannot be read is set aside.

    Raises:
        InputError: for a choice that is none of `names`.
    """
    choice, problem = process_group.from_rank_0(_choice_and_problem(path, names))
    if problem:
        raise InputError(problem, parameter=str(path))
    return choice


def _choice_and_problem(path: Path, names: Sequence[str]) -> tuple[str | None, str]:
    """Return the choice or None, and what is wrong with its file or ''."""
    try:
        choice = converted(
            read_json(path, dict[str, object], again="").get("chosen"), str, "chosen"
        )
    except FileNotFoundError:
        return None, ""
    except (InputError, Misfit) as error:
        if process_group.rank() == 0:
            set_aside(path, error)
        return None, ""
    if choice not in names:
        return (
            None,
            f"{path} chooses {choice!r}, which is no candidate.{did_you_mean(choice, names)} "
            f"Known: {', '.join(names)}.",
        )
    return choice, ""


def write_choice(path: Path, choice: str, hosts: Topology, table: list[list[str]]) -> None:
    """Write the choice, with the figures that led to it.

    Raises:
        OSError: where that fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"chosen": choice, "hosts": str(hosts), "table": table})

"""Every option of the gallery, declared once.

A dataclass per subject, a file for each kind of them; each field says what it means, in which unit, and what it may be. The command
lines, the check of notebook parameters, the notebooks' parameters cells and the documentation's tables all come from here
(options.py says how); nothing else parses or defaults an option. Needs no torch.
"""

from gallery_lib.config.acceleration import (
    Comm,
    Compiler,
    Compute,
    Config,
    Loader,
    Memory,
    Tune,
    backend_config,
)
from gallery_lib.config.cluster import LabConfig, LabNameConfig, LabRunConfig
from gallery_lib.config.commands import BatchConfig, BenchConfig, SiteConfig
from gallery_lib.config.communication import (
    ConvergenceConfig,
    RecordConfig,
    ReplayConfig,
    WaysConfig,
)
from gallery_lib.config.notebooks import (
    NotebookConfig,
    PerformanceDataConfig,
    WalkConfig,
    WireConfig,
    YourModelConfig,
)
from gallery_lib.config.training import CompareConfig, LaunchConfig, TrainConfig

__all__ = [
    "BatchConfig",
    "BenchConfig",
    "Comm",
    "CompareConfig",
    "Compiler",
    "Compute",
    "Config",
    "ConvergenceConfig",
    "LabConfig",
    "LabNameConfig",
    "LabRunConfig",
    "LaunchConfig",
    "Loader",
    "Memory",
    "NotebookConfig",
    "PerformanceDataConfig",
    "RecordConfig",
    "ReplayConfig",
    "SiteConfig",
    "TrainConfig",
    "Tune",
    "WalkConfig",
    "WaysConfig",
    "WireConfig",
    "YourModelConfig",
    "backend_config",
]

"""Declarations of every option of the gallery: a dataclass per subject, a file per kind.

Each field says what it means, in which unit, and which values it takes. The check of values, the
notebooks' parameters cells and the tables of the documentation (`options.py`) and command lines
(`command_line.py`) come from these declarations. No other module parses an option or sets its
default. The room needs no torch.
"""

from gallery_lib.config.acceleration import (
    Comm,
    Compiler,
    Compute,
    Config,
    Loader,
    Memory,
    backend_config,
)
from gallery_lib.config.commands import (
    BatchConfig,
    BenchConfig,
    CompareConfig,
    ConvergenceConfig,
    LabConfig,
    LabNameConfig,
    LabRunConfig,
    RooflineConfig,
    StrategiesConfig,
)
from gallery_lib.config.notebooks import (
    CommunicationNotebookConfig,
    DataParallelNotebookConfig,
    NotebookConfig,
    PerformanceDataConfig,
    YourModelConfig,
)
from gallery_lib.config.training import LaunchConfig, TrainConfig

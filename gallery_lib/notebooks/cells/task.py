"""What the cells of a task's notebook, of `your_model` and of the index call, as `notebook`.

    from gallery_lib import notebook
    settings = notebook.settings("resnet50")

`settings` checks the parameters and completes them; `with_your_code` takes what the cells define.
`compare` measures. The `show_…` functions display a table as Markdown and a figure as PNG with
alternative text (display.py); details that not every reader needs are folded.
"""

from __future__ import annotations

import warnings

from gallery_lib.notebooks.cells.comparison import (
    compare,
    compare_on_several,
    launch,
    measure_techniques,
    show_comparison,
    show_losses,
    show_scaling,
    show_techniques,
    show_techniques_added,
    show_throughput,
)
from gallery_lib.notebooks.cells.data import make_data, show_data
from gallery_lib.notebooks.cells.machine import show_machine
from gallery_lib.notebooks.cells.task_settings import Settings, settings
from gallery_lib.notebooks.cells.training import (
    loader,
    on_device,
    profile,
    show_model,
    show_profile,
    show_source,
    show_training,
)
from gallery_lib.notebooks.cells.your_code import with_your_code, your_settings

# Libraries of models import tqdm. It warns, as of an error, where ipywidgets is missing, which
# nothing here needs.
warnings.filterwarnings("ignore", "IProgress not found")

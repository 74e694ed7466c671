"""Command lines: the `gallery` command and `launch_single_task.py`."""

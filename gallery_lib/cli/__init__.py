"""Command lines: `gallery` and `launch_single_task.py` (main), and what `prepare.sh` does."""

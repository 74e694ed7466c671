"""Command lines: the `gallery` command, `launch_single_task.py` and `prepare.sh`.

`main` knows the commands and their help, `commands` has a file for each. `prepare` is what
`prepare.sh` does once it has found a Python, and `next_steps` prints the commands with which it
ends.
"""

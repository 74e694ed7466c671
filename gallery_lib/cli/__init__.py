"""Command lines: the `gallery` command, `launch_single_task.py` and `prepare.sh`.

`main` starts a command and shows the help, `commands` has a function for each. `prepare` is what
`prepare.sh` does once it has found a Python.
"""

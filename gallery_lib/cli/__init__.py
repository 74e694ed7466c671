"""Command lines: the `gallery` command, `launch_single_task.py` and `prepare.sh`.

`main` knows the commands and their help, `commands` has a file for each, and `completion` writes
the scripts for bash and zsh. `preparation` is what `prepare.sh` does once it has found a Python,
and `next_steps` prints the commands with which it ends.
"""

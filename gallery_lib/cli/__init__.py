"""Command lines: the `gallery` command and `launch_single_task.py`.

`main` knows the commands and their help, `commands` has a file for each, `completion` writes the
scripts for bash and zsh, and `next_steps` prints the commands with which `prepare.sh` ends.
"""

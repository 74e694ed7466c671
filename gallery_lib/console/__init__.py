"""Output for people at a terminal or a notebook: tables, progress, messages, exit codes.

- `table`: rows as text or Markdown, figures in words.
- `progress`: a phase with its clock, in a notebook, on a terminal or as plain lines.
- `phases`: what rank 0 notes in `phases.json`.
- `visible`: what others wrote, without escape sequences; every command prints through it.
- `exit_code`: how a command begins and ends: one message and an exit code; signals as exceptions.
- `user_errors`: messages for errors in the reader's own code, with their line.
"""

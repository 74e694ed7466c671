"""Output for people at a terminal or a notebook: tables, progress, messages, exit codes.

- `text`: rows as text or Markdown, figures in words; what others wrote, without escape sequences.
- `progress`: a run's phases in `phases.json`; a phase with its clock, wherever it is shown.
- `exit_code`: how a command begins and ends: one message and an exit code; signals as exceptions.
- `user_errors`: messages for errors in the reader's own code, with their line.
"""

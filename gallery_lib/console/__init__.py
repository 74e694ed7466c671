"""Output for people at a terminal or a notebook: tables, progress, messages, exit codes.

- `table`: rows as text or Markdown, figures in words.
- `progress`: a `shown_phase` with its clock and bar, on one of the `outlets`.
- `phases`: what rank 0 notes in `phases.json`. `expected_durations`: what phases took before.
- `exit_code`: how a command begins and ends: one message and an exit code. `signals`: SIGINT and
  SIGTERM as exceptions that do not get lost.
- `user_errors`: messages for errors in the reader's own code; `error_meanings` is their table.
"""

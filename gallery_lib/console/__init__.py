"""Output for people at a terminal or a notebook: tables, progress, messages, exit codes.

- `table`: rows as text or Markdown. `progress`: phases, a clock and bars, on one of the `outlets`.
- `phases`: what rank 0 notes in `phases.json`. `expected_durations`: what phases took before.
- `exit_code`: how a command begins and ends: one message and an exit code.
- `user_errors`: errors in the reader's own code, told in one line.
"""

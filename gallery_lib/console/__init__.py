"""Output for people at a terminal or a notebook: tables, progress, messages, exit codes."""

"""What a person at a terminal or a notebook sees: tables, progress, messages, exit codes."""

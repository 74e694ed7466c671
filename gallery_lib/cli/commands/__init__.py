"""Commands behind `gallery`, one per file.

`LINE` declares what the command takes, and `main(arguments)` runs it. A command imports what it
needs when it runs, so help stays quick.
"""

"""The words behind `gallery`, a file each: `LINE` declares what the command takes, `main(arguments)` does it.

What a command needs is imported when it is done: help and completion stay quick.
"""

"""This machine and this process: folders, hardware, processes, files."""

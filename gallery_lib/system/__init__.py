"""This machine and this process: folders, hardware, processes, files.

- `paths`: the cache, the runs, the environment, and folders from which code may be loaded.
- `prepared_python`: continue a script with the Python of the environment.
- `hardware`: cores, memory, instruction sets, accelerators, limits on them; versions.
- `machine_load`: what else wanted the machine while something was measured.
- `processes`, `supervisor`: child processes of which none outlives its parent.
- `files`: atomic writes, locks, JSON read against a declared shape, private folders.
"""

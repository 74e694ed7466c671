"""This machine and this process: folders, hardware, processes, files.

- `paths`: the cache, the runs, the environment, and folders from which code may be loaded.
- `prepared_python`: continue a script with the Python of the environment.
- `hardware`, `cgroups`: cores, memory, instruction sets, accelerators, and limits on them.
- `processes`, `supervisor`: child processes of which none outlives its parent.
- `json_files`: JSON files, written whole and read against a declared shape.
- `version`, `extras`: this version, and how to install what is optional.
"""

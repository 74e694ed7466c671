"""This machine and this process: folders, hardware, processes, files.

- `paths`: the cache, the runs, the environment, and folders from which code may be loaded.
- `prepared_python`: continue a script with the Python of the environment.
- `hardware`: cores, memory, instruction sets, accelerators, and limits on them.
- `machine_load`: what else wanted the machine while something was measured.
- `processes`, `supervisor`: child processes of which none outlives its parent.
- `files`: atomic writes, and locks that one process holds at a time.
- `json_files`: JSON files, read against a declared shape.
- `version`: versions of the gallery and of libraries.
"""

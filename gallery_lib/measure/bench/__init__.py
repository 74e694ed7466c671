"""`gallery bench`: measurement of tasks in several variants.

`bench` goes through the tasks, `plan` says which variants of a task run, `task` measures them in
groups that are alive at the same time. `result` is `bench.json` (schema 1, no torch).
"""

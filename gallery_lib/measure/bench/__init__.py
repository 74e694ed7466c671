"""`gallery bench`: measurement of tasks in several variants.

`plan` says which variants of a task run, `bench` goes through the tasks and measures them in
groups that are alive at the same time. `result` is `bench.json` (schema 1, no torch).
"""

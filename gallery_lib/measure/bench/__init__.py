"""`gallery bench`: measurement of tasks in several variants."""

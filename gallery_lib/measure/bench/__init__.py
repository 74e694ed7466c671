"""`gallery bench`: tasks by variants."""

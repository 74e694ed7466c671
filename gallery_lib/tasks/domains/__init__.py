"""What the tasks of one domain share: their data, loss, metrics, and what they show of both. One file per domain."""

"""What the tasks of one domain share, one file per domain: data, loss, metrics, and examples."""

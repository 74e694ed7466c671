"""Many notebooks, headless: which ones with which parameters (`plan`), their processes (`execution`, `schedule`), what
counts as having run (`evidence`), and what is written about it (`record`, `summary`, `junit`, `page`, `changes`).
`single_notebook` reads what one notebook left without a batch."""

"""Report of a bench or a waterfall; needs no torch.

`text` puts it together, as text and as Markdown: a table for each task (`task_table`), ours over
the others (`leads`), and how to read the figures (`notes`). `figure` is the picture with its
alternative text. Speeds stand beside the machine's limits, measured in the same run. A variant
shows its reason instead of a speed if it did not run, or does not compute the same training.
"""

"""Functions that the cells of the notebooks call.

`task` serves the notebooks of tasks and the index, `data_parallel`, `communication` and
`performance_data` the notebooks of those names. Parameters are checked before torch is imported,
so modules that import torch are imported inside functions.
"""

"""Functions that the cells of the notebooks call.

`task` serves the notebooks of tasks and the index, `data_parallel`, `communication` and
`performance_data` the notebooks of those names. `display` shows Markdown and figures.
`kernel_parameters` reads the parameters cell, and `task_settings` completes a task's parameters.
`own_cell` writes a reader's cell to a file that training processes import. Parameters are checked
before torch is imported.
"""

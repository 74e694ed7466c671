"""Notebook tooling: functions that cells call, batch runs, archives, JupyterLab.

`plan` settles which notebooks of a batch run with which parameters, and `schedule` runs them.
`evidence` decides whether a notebook really ran. `reports` reports the results, and compares those
of two batches. `cells` holds the functions that cells call, and `pack` makes archives.
"""

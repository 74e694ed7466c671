"""Headless batch runs of notebooks.

`plan` settles which notebooks run with which parameters, and `schedule` runs them. `evidence`
decides whether a notebook really ran. `record`, `reports` and `changes` report the results.
"""

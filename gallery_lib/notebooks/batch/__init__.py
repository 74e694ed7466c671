"""Headless batch runs of notebooks: planning, execution, judgement and reports.

`plan` settles which notebooks run with which parameters, and `schedule` runs them. `evidence`
decides whether a notebook really ran. `record`, `summary`, `reports` and `changes` report the
results.
"""

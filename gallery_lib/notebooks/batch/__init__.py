"""Headless batch runs of notebooks: planning, execution, judgement and reports.

`plan` settles which notebooks run with which parameters; `execution` and `schedule` run their
processes. `evidence` decides whether a notebook really ran. `record`, `summary`, `junit`, `page`
and `changes` report the results. `single_notebook` reads what one notebook left without a batch.
"""

"""What `prepare.sh` does once it has found a Python; the standard library is all that it needs.

`prepare.sh` starts `__main__` with the Python that environments are made from. `command` has the
steps in their order, `options` what may be asked for, and `folders` where things are kept.

- Before anything is made: `checkout_lock` keeps two runs apart, `machine` says what is lacking.
- The environment: `stamp` and `environment` tell whether it is ready. `virtual_environment` makes
  `.venv`, `active_environment` adds to that of `--into-current`. `installation` gets uv, `kernel`
  registers the Jupyter kernel, and `requirements_lock` is `--lock`.
- Afterwards: `notebook_run` is `--run`, and `checks` is `--test`.
- `progress` prints the steps. `children` runs commands that a signal to `prepare.sh` also ends.
"""

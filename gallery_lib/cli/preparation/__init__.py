"""What `prepare.sh` does once it has found a Python; the standard library is all that it needs.

`__main__` has the options and the steps in their order. `environment` makes the Python environment,
and `children` runs commands that a signal to `prepare.sh` also ends.
"""

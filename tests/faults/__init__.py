"""What happens when everything around the training goes wrong: one table of faults, one driver, and chaos.

`python -m tests.faults --all` carries out every row of `rows.py` and writes docs/guides/faults.md; `--chaos --minutes 30` picks
command, moment and fault at random. The quick rows are ordinary tests (`test_rows.py`).
"""

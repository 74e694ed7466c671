"""Faults around a training and what must come of them: one table, one driver, and chaos.

`python -m tests.faults --all` carries out every row of `rows.py` and writes FAULTS.md.
`--chaos --minutes 30` picks command, moment and fault at random. The quick rows are ordinary tests
(`test_rows.py`).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

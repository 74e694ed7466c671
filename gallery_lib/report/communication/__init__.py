"""Plots of communication: bytes sent, step times, buckets over time, and what was learned.

As in report/plots.py, each plot has its alternative text and the rows of a table with the same
content. Its title says what came out. A function whose name ends in `advice` returns what to do
with that, made from the same data. A plot from a lab of hosts says in its title that the links are
emulated.
"""

EMULATED = "emulated link"
"""What titles and tables call the links of a lab."""
GREY = "#999999"
"""Colour of what is not compared."""

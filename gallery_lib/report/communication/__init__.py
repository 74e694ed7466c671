"""Plots of communication: bytes sent, step times, buckets over time, and what was learned.

As in report/plots.py, each plot has its alternative text and the rows of a table with the same
content. A plot from a lab of hosts says in its title that the links are emulated.
"""

EMULATED = "emulated link"
"""What titles and tables call the links of a lab."""
GREY = "#999999"
"""Colour of what is not compared."""

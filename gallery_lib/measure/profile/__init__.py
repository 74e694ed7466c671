"""Where the time of a training step goes: groups of operators, as torch's profiler sees them.

`operator_groups` says which operators belong together. `step_profile` runs steps under the profiler
and adds up the time of each group. `roofline/` counts the work of each, and holds its time against
the machine's limits.
"""

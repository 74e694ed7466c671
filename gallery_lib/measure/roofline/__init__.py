"""Roofline of a training step: time of each group of operators, beside the time at the limits.

The limits are this machine's matrix products and copies, measured between the profiled steps.
`measure` starts one process, which has the rates of products and copies, in turns with the steps,
and each operator's seconds from torch's profiler. `counts` has bytes and FLOPs of the operators of
one step, from their shapes and from Inductor's own scheduler. `result` is `roofline.json`.
"""

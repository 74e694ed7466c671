"""Roofline of a training step: time of each group of operators, beside the time at the limits.

The limits are this machine's matrix products and copies, measured between the profiled steps.
`measure` starts one process, which has the rates of products and copies, in turns with the steps,
and each operator's seconds from torch's profiler, and puts all together by operator and by group.

- `counts`: bytes and FLOPs of the operators of one step, from their shapes.
- `generated`: bytes of the kernels that Inductor generates, from its own scheduler.
- `result`: what comes out, as `roofline.json` (schema 1, no torch).
"""

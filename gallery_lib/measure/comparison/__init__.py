"""Comparison of two variants of a training run: parity first, then speed.

- `compare`: the course of a comparison. `result`: `comparison.json`; needs no torch.
- `interleaved`: variants that are alive at the same time. `turns`: who trains now. `worker`: one
  process of a variant.
- `float64_reference`: the first steps in float64 (`float64_model`), kept while it applies.
- `gradient_probe`: gradients of the same first batches. `parity`: losses and gradients against
  float64; without parity there is no speed-up.
- `process_spread`: how far apart processes of the same code are, which widens every interval.
- `machine_load`: what else wanted the machine. `work_per_step`: FLOPs and bytes of a step.
- `first_pass`: one pass of a reader's own task before any process is started for it.
"""

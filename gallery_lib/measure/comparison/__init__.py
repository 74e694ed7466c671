"""Comparison of two variants of a training run: parity first, then speed.

- `compare`: the course of a comparison. `result`: `comparison.json`; needs no torch.
- `plan`: variants, and how their steps are divided into turns. `interleaved`: the turns, in the
  order A B B A, of the variants that are alive. `turns`: who trains now. `worker`: one
  process of a variant.
- `measurement`: what was measured of a variant. `pair`: parity and speed-up of two of
  them, and the losses of all their steps.
- `float64_reference`: the first steps in float64 (`float64_model`), kept while it applies.
- `gradient_probe`: gradients of the same first batches. `parity`: losses and gradients against
  float64; without parity there is no speed-up. `gradient_parity`: its checks of gradients.
  `deviation`: a value and its limit, of which checks are made.
- `second_run`: how far rounding alone carries a training.
- `process_spread`: how far apart processes of the same code are, which widens every interval.
- `work_per_step`: FLOPs and bytes of a step.
- `script_turns`: unchanged scripts in turns, by what they log; `paused_script` is one of them.
- `first_pass`: one pass of a reader's own task before any process is started for it.
"""

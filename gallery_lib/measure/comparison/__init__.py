"""Comparison of two variants of a training run: parity first, then speed.

- `compare`: the course of a comparison. `result`: `comparison.json`; needs no torch.
- `interleaved`: variants, and their blocks of steps in the order A B B A. `worker`: one process of
  a run, the socket over which it gets its turn, and the gradients of its first batches.
- `untimed`: the first steps in float64, kept while they apply; and second runs, which tell how far
  rounding alone carries a training.
- `parity`: losses and gradients against float64; without parity there is no speed-up. `pair`:
  parity and speed-up of two variants, and the losses of all their steps.
- `script_turns`: unchanged scripts in turns, by what they log.
- `first_pass`: one pass of a reader's own task before any process is started for it.
"""

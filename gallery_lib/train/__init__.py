"""One training run: its options, loop, precision, records, results and the causes of failures.

- `resolved`: the options of a run, checked and completed once, and the file that carries them.
- `session`: data, model, optimizer, log and the clock of steps; a recipe makes the model ready.
- `loop`: the one loop for baseline and backend; held-out metrics and figures after it.
- `precision`: fp32 or autocast, and gradient scaling.
- `results`: `config.json`, `steps.jsonl`, a log per rank, and `results.json`, written last.
- `pretrained`: weights that a run starts from, and those that it leaves.
- `checkpoints`: what a run goes on from, and what is saved of it at the end of steps; `Trained`,
  what the loop leaves.
- `failure`: why a run failed, and who first.
"""

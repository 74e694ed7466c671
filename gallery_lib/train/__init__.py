"""One training run: its loop, precision, records, results and the causes of failures.

- `loop`: the one loop for baseline and backend; `recipe` says who makes the model ready.
- `precision`: fp32 or autocast, and gradient scaling. `step_clock`: times of steps and phases.
- `run_log`: `config.json`, `steps.jsonl`, a log per rank. `results`: `results.json`, written last.
- `divergence`: where a loss stopped being finite. `failure`: why a run failed, and who first.
"""

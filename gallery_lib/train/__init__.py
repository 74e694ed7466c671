"""One training run: its loop, precision, records, results and the causes of failures."""

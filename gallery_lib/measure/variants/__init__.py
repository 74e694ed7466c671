"""Who makes a model fast: our backend, peers, a tuner by hand."""

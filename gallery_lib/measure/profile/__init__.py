"""Where the time of a training step goes, by groups of operators, and against machine limits."""

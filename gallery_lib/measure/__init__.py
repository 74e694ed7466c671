"""Fair comparison of variants: turns, parity, and the machine's own limits."""

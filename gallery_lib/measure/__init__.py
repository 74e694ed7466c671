"""Fair comparison of variants: turns, parity checks, and the machine's own limits."""

"""Benchmarks: `attnres bench`. Checked against the float64 oracle first, then timed side by side in one process."""

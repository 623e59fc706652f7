"""Benchmarks: each prints ratios measured within one run, since absolute times belong to a machine."""

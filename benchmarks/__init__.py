"""Benchmarks. Each prints ratios of times from one run, because absolute times hold only for one machine."""

"""Benchmarks of speed, memory and scores. Times are compared within one run, because absolute times hold only for one machine."""

"""Benchmarks of speed, memory and quality on real data. Each prints Markdown, ready for a page. Nothing here is installed."""

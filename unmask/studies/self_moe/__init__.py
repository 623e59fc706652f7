"""Self-MoE (arXiv 2406.12034): experts, baselines, mixtures and their ablations, on the same lessons and the same held-out responses.

plan.py says what is done, builder.py makes experts and mixtures, measurements.py measures them, tables.py and figures.py show it.
"""

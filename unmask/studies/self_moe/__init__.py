"""Self-MoE (arXiv 2406.12034): experts, baselines, mixtures and their ablations, on the same lessons and the same held-out responses.

plan.py says what is done; study_data.py draws lessons and ability tests; builder.py trains experts and mixtures; measurements.py and
overhead.py measure them; run.py runs all of it; tables.py, figures.py and report.py show the findings.
"""

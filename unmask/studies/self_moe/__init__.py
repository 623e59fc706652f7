"""Self-MoE (arXiv 2406.12034): experts, baselines, mixtures and their ablations, on the same lessons and the same held-out responses."""

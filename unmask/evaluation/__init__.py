"""Evaluation: designs scored on tasks, and the statistics that say which differences are real.

`comparison.py` runs `unmask compare` over all models; `scoring.py` scores the designs of one model into the `ResultStore` of `results.py`;
`verdict.py` tests pairs of systems, and `leader.py` says in sentences which one leads.
"""

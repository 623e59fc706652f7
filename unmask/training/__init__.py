"""Training: what an embedder learns from, and how: data, stages, adapters.

`recipe_run.py` does all of `unmask train`; `train.py` trains each design with each seed; `loop.py` is the loop of one stage.
"""

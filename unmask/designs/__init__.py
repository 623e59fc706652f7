"""Designs: how a model is read as an embedder, the prompts that a design can use, and designs with names."""

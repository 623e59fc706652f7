"""Designs: how a model becomes an embedder, the prompts that a design can use, and the named presets."""

"""Saving: the folder of a saved embedder, which sentence-transformers loads too."""

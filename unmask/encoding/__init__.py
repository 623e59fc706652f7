"""Encoding: texts to vectors. Tokens, batches, forward passes, poolings, heads, features, and vectors on disk."""

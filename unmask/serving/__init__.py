"""Serving: files of texts to files of vectors."""

"""Reporting: what results look like to a reader. Nothing here computes a score."""

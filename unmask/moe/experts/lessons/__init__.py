"""Lessons: what experts learn from. They are drawn from data, written by models, filtered and kept."""

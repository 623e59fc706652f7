"""Evaluation: designs scored on tasks, and the statistics that say which differences are real."""

"""Mixtures of experts: models, training, routing."""

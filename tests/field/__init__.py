"""Inputs as people really have them: their files, models, tokenizers, templates and requests."""

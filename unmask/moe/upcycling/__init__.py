"""Dense models made into mixtures of experts."""

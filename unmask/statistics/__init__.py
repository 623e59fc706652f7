"""Statistics: arrays in, numbers out. Bootstrap, paired tests, ranks, seeds, power and intervals."""

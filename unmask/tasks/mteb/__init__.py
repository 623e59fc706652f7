"""mteb: its tasks and benchmarks by name, and its evaluators, which compute every score on texts."""

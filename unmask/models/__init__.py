"""Models: where they come from, what identifies them, how they are loaded, and how their attention is set and proven."""

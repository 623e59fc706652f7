"""UI: a local page on which a user looks at embeddings."""

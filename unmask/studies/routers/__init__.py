"""Which router configurations give distinct routing patterns, what that is worth, and whether it makes better embeddings."""

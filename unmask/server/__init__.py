"""Serving: an HTTP server with the API of OpenAI's embeddings, one queue of texts, and batches over requests."""

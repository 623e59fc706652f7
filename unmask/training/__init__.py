"""Training: what an embedder learns from, and how: data, stages, adapters."""

"""Exports: an embedder in the format of another runtime, checked by that runtime before it is written."""

"""Files, tables of rows, checksums, terminal output, progress and locks: what every room uses to meet the outside."""

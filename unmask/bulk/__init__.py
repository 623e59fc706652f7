"""Files of texts become files of vectors: one file, or a corpus of any size in shards."""

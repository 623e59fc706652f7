"""Tasks: labelled data of eight kinds, from folders and from mteb."""

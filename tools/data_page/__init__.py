"""The page that lists the sets of the data folder: its words, the facts of each set, and what needs it."""

"""Studies: one command measures the tables and figures of a paper again. A stopped study continues where it was."""

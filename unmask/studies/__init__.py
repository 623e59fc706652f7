"""Studies: a paper's tables and figures, measured anew by one command that resumes where it was stopped."""

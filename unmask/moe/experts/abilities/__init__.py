"""What language models get right on public tests, through lm-eval where it can, and with a sandbox for code that models write."""

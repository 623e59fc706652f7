"""Abilities: what a language model can do, by accuracy on public tests, through lm-evaluation-harness on the model in memory.

ability_tests.py says which tests there are and how their local files are asked; harness.py runs them; sandbox.py runs the code that models
write (inside_sandbox.py is what runs in it, seccomp.py what it may not ask of the kernel).
"""

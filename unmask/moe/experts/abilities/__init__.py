"""Abilities: the accuracy of a language model on public tests, by lm-evaluation-harness on the model in memory.

ability_tests.py defines the tests and reads their local files. harness.py runs the tests. sandbox.py runs the code that models write:
inside_sandbox.py is the program inside, and seccomp.py lists the system calls that are forbidden there.
"""

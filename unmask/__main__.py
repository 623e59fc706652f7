"""`python -m unmask` is the command line."""

from unmask.cli import main

main()

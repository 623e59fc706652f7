"""Tables of docs/results.md and of the README, written from kept results, which lie in docs/measured/results.

    python -m tools.results                           write the tables again
    python -m tools.results NAME FOLDER 'COMMAND'     keep what tables need of the folder that COMMAND wrote, then write the tables
    python -m tools.results NAME FILE                 keep the file that a benchmark wrote with `--keep`, then write the tables

FOLDER comes from `unmask compare` or `unmask recommend`. COMMAND is shown to readers, with DATA in place of a folder of this machine.
"""

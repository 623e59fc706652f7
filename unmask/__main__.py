"""`unmask` and `python -m unmask`: the command line.

Importing it takes some tenths of a second. Until it runs, Ctrl-C ends the process as the shell expects, without a traceback.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from unmask.cli import main

if __name__ == "__main__":
    main()

"""Keep a result if one is given, and write the tables of all pages."""

import sys

from tools.results.pages import main

if __name__ == "__main__":
    main(sys.argv[1:])

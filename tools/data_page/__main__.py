"""Write docs/data.md.

python -m tools.data_page           write the page again, without the data
python -m tools.data_page DATA      look into the data folder first
"""

import sys

from tools.data_page.page import main

if __name__ == "__main__":
    main(sys.argv[1:])

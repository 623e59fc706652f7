"""Write docs/data.md.

python -m tools.data_page           write the page again, without the data
python -m tools.data_page DATA      first find the facts of the sets that DATA has; the others keep theirs
"""

import sys

from tools.data_page.page import main

if __name__ == "__main__":
    main(sys.argv[1:])

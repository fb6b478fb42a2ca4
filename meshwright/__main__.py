"""`python -m meshwright`: the command."""

import sys

from meshwright.command import main

if __name__ == "__main__":
    sys.exit(main())

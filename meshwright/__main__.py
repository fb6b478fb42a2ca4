"""`python -m meshwright`: the command."""

from __future__ import annotations

import sys

from meshwright.command import main

if __name__ == "__main__":
    sys.exit(main())

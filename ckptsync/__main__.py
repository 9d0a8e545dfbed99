"""`python -m ckptsync`: the command line without its script."""

from __future__ import annotations

import sys

from ckptsync.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

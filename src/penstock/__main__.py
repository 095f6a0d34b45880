"""`python -m penstock` is the command `penstock`."""

import sys

from penstock.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

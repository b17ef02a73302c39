"""Starts the command."""

import sys

from attention_residuals.bench.distributed.command import main

if __name__ == "__main__":
    sys.exit(main())

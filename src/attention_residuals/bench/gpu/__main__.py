"""Starts the run. By its path, too, so that a package that is missing is named in a sentence."""

import sys

try:
    from attention_residuals.bench.gpu.command import main
except ModuleNotFoundError as error:
    print(f"attnres: {error.name} is not installed; pip install {error.name}", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main())

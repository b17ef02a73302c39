"""The examples run as they stand, and show what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_own_model() -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "own_model.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 2
    assert all(loss < 0.3 for loss in losses)


@pytest.mark.slow
def test_transformers_model() -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "transformers_model.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "softmax attention over depth replaces the residual sum." in done.stdout

"""The examples run as they stand, and show what they say."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

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


TEXT = "the country and the people of the states have a common interest in public order and in honest work"


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["standard", "block"])
def test_encoder_decoder(name: str) -> None:
    """A few steps on few words: the loss falls, and what was restored has the letters that it was given."""
    example, words = load_example("encoder_decoder"), TEXT.split()
    vars(example)["BATCH"] = 16
    with example.progress_bar(Console(quiet=True)) as progress:
        model, losses = example.train(example.RESIDUALS[name], words, layers=3, steps=80, progress=progress, name=name)
    assert losses[0] > 3 and losses[-1] < 0.5 * losses[0]
    found = example.restore(model, [example.without_vowels(word) for word in words])
    assert sum(one == word for one, word in zip(found, words, strict=True)) >= len(words) // 4


def test_encoder_decoder_compares(capsys: pytest.CaptureFixture[str]) -> None:
    example, words = load_example("encoder_decoder"), TEXT.split()
    example.compare(example.Words(words, words[:5]), layers=2, steps=2, console=Console(width=100))
    printed = capsys.readouterr().out
    assert re.search(r"dictionary\W+-\W+1\.000", printed)
    assert all(re.search(rf"{name}\W+[\d.]+\W+[\d.]+\W+\d+", printed) for name in example.RESIDUALS)

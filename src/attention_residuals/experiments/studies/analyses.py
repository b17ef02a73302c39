"""What a study may ask of a trained model; each answer is a JSON file in its run's folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attention_residuals.experiments.analyses.depth import depth
from attention_residuals.experiments.analyses.dynamics import dynamics
from attention_residuals.experiments.evaluation.evaluate import evaluation
from attention_residuals.train import TokenData, Trained, load_text, load_trained

Analysis = Callable[[Trained, TokenData], Any]

ANALYSES: dict[str, Analysis] = {"dynamics": dynamics, "depth": depth, "evaluation": evaluation}
"""By name, which is also that of the file."""


def analyse(name: str, path: Path) -> Any:
    """The answer `name` for the finished run in folder `path`, from its last checkpoint."""
    trained = load_trained(path)
    return ANALYSES[name](trained, load_text(trained.config.text))
